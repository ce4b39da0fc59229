-- Takes a lock, or says how long its holder may still keep it.
-- KEYS[1] the lock
-- ARGV[1] token   ARGV[2] TTL in ms
-- RETURNS 0 the token holds the lock now, for the whole TTL
--         n > 0 somebody else does, for n ms at most
-- May run twice: the token that holds the lock finds itself there.
local lock, token, ttl = KEYS[1], ARGV[1], ARGV[2]

if redis.call('SET', lock, token, 'NX', 'PX', ttl) then
  return 0
end
local holder, left = redis.call('GET', lock), redis.call('PTTL', lock)
if holder == token then
  -- Never shorter: this may be a late copy of an attempt whose repeat has been
  -- answered, and the lock been extended since.
  if left < tonumber(ttl) then redis.call('PEXPIRE', lock, ttl) end
  return 0
end

-- Without a TTL, its holder died between SETNX and EXPIRE (or is a client that
-- never sets one): the key gets one, and is waited for like any other.
if left == -1 then
  redis.call('PEXPIRE', lock, ttl)
  left = tonumber(ttl)
end
return math.max(left, 1)
