-- Takes one of the permits of a name that is free or reserved for the process, or joins the line of those that wait for one.
-- KEYS[1] the permits   KEYS[2] their line, if ARGV[4] or a fence is given   KEYS[3] the last fence, if one is wanted
-- ARGV[1] token   ARGV[2] TTL in ms   ARGV[3] how many permits there are   ARGV[4] to ARGV[7...] as of acquire.lua
-- RETURNS 0, or the fence, as text: the token holds a permit now, for the whole TTL
--         {ms until the first ends, at most; place in line, as of acquire.lua; score}, or the
--         first of these where ARGV[6] is '': not acquired
--         -1 a key was not written by this library   -1-n there are n permits, -2 it is a plain lock; of these, nothing changed
-- USES unpack, kinds, fence, lock_line, permits, lock_join
-- RETRY never: the next request has another token and member, and replaces this one.
local token, ttl, permits, member, how = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] or '', ARGV[6] or ''
local now, number = clock(), redis.pcall('ZSCORE', KEYS[1], '')
-- The GET fails if it is not a plain lock either.
if type(number) == 'table' then return denied(number) or redis.call('GET', KEYS[1]) and -2 end
local known = tonumber(number or 0)
local members = redis.call('ZCARD', KEYS[1]) -- with '', and with what has ended
if members > 0 and not (known <= -2 and known == math.floor(known)) then return -1 end
local held, replaced = redis.call('ZCOUNT', KEYS[1], '(' .. text(now), '+inf'), {}
local function replace(other)
  if tonumber(redis.call('ZSCORE', KEYS[1], other) or 0) > now then replaced[#replaced + 1] = other end
end
if member ~= '' then replace('>' .. member) end
for i = 7, #ARGV do replace(ARGV[i]) end
if held > 0 and known ~= -permits then return known - 1 end
local free = permits - held + #replaced
if free < 1 then return waits(math.max(firstEnd(now) - now, 1), how, member, ARGV[5]) end
local fence = nextFence(0)
if not fence then return -1 end

local left, soonest = redis.call('PTTL', KEYS[1]), free == 1 and firstEnd(now) - now or 0
-- One ms more: the present one has begun.
redis.call('ZADD', KEYS[1], -permits, '', text(now + ttl + 1), token)
local done = redis.pcall('PEXPIRE', KEYS[1], text(math.max(left, ttl + 1)))
if members - 1 > held and type(done) == 'number' then -- not before: after that a full server would accept a new permit
  done = redis.pcall('ZREMRANGEBYSCORE', KEYS[1], 0, text(now))
end
if replaced[1] and type(done) == 'number' then done = redis.pcall('ZREM', KEYS[1], unpack(replaced)) end
if KEYS[3] and type(done) == 'number' then done = redis.pcall('SET', KEYS[3], fence, 'PX', fenceLife) end
if type(done) == 'table' and done.err then -- denied
  redis.call('ZREM', KEYS[1], token)
  if left >= 0 then redis.pcall('PEXPIRE', KEYS[1], left) end
  if members == 0 then redis.call('DEL', KEYS[1]) end
  return done
end
local first = leave(member)
if free > 1 then passPermitOn(now, -permits) elseif first then tellFirst(math.min(soonest, ttl)) end
return fence
