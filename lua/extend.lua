-- Gives a lock that the token holds a TTL of at least ARGV[2] from now and, if one is wanted, its new holder a fence.
-- KEYS[1] the lock   KEYS[2] its line, which is not read, and KEYS[3] the last fence reserved, if one is wanted
-- ARGV[1] token   ARGV[2] TTL in ms
-- RETURNS 1, or the fence, as text: done   0 the token does not hold it
--         -1 KEYS[3] was not written by this library; nothing changed
-- USES kinds, fence
-- RETRY idempotent, and in any order with other extensions: it never makes a TTL shorter. A higher fence is as good.
local holder = redis.pcall('GET', KEYS[1])
if holder ~= ARGV[1] then return denied(holder) or 0 end
local fence = nextFence(0)
if not fence then return -1 end
-- Write in any case: a WAIT behind this script counts what this connection has written. And first: after this a full
-- server accepts the next write.
local left = redis.call('PTTL', KEYS[1])
redis.call('PEXPIRE', KEYS[1], text(math.max(left, tonumber(ARGV[2]))))
if not KEYS[3] then return 1 end
local saved = redis.pcall('SET', KEYS[3], fence, 'PX', fenceLife)
if saved.err then
  if left >= 0 then redis.call('PEXPIRE', KEYS[1], left) end
  return saved
end
return fence
