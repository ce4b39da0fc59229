-- Gives a permit that the token holds a TTL of at least ARGV[2] from now and, if one is wanted, its new holder a fence.
-- KEYS[1] the permits   KEYS[2] their line, which is not read, and KEYS[3] the last fence, if one is wanted
-- ARGV[1] token   ARGV[2] TTL in ms
-- RETURNS 1, or the fence, as text: done   0 the token does not hold a permit
--         -1 KEYS[3] was not written by this library; nothing changed
-- USES kinds, fence
-- RETRY idempotent, and in any order with other extensions: it never makes a TTL shorter. A higher fence is as good.
local now, score = clock(), redis.pcall('ZSCORE', KEYS[1], ARGV[1])
local ends = tonumber(type(score) == 'string' and score or 0)
if ends <= now then return denied(score) or 0 end
local fence = nextFence(0)
if not fence then return -1 end
local left, ttl = redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])
redis.call('PEXPIRE', KEYS[1], text(math.max(left, ttl + 1))) -- first: after this a full server accepts the next write
local done = redis.pcall('ZADD', KEYS[1], text(math.max(ends, now + ttl + 1)), ARGV[1])
if KEYS[3] and type(done) == 'number' then done = redis.pcall('SET', KEYS[3], fence, 'PX', fenceLife) end
if type(done) == 'table' and done.err then -- denied
  redis.pcall('ZADD', KEYS[1], text(ends), ARGV[1])
  if left >= 0 then redis.call('PEXPIRE', KEYS[1], left) end
  return done
end
return KEYS[3] and fence or 1
