-- Acquires a lock, or returns how much longer another token may hold it.
-- KEYS[1] the lock
-- ARGV[1] token   ARGV[2] TTL in ms   ARGV[3...] tokens of the same call's last requests, which had no reply
-- RETURNS 0 the token holds the lock now, for the whole TTL
--         n > 0 another token holds it, for n ms at most
--         -1-n it is held with n permits; nothing changed
-- RETRY never: the next request has another token, and replaces this one.
local token, ttl = ARGV[1], ARGV[2]

if redis.call('SET', KEYS[1], token, 'NX', 'PX', ttl) then
  return 0
end
local holder, left = redis.pcall('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
if type(holder) == 'table' then return permitsInstead(holder) end
for i = 3, #ARGV do
  if holder == ARGV[i] then
    redis.call('SET', KEYS[1], token, 'PX', ttl)
    return 0
  end
end

-- The key has no TTL: its holder died between SETNX and EXPIRE, or is a client that
-- never sets a TTL. Give it one, so that the wait for it ends.
if left == -1 then
  redis.call('PEXPIRE', KEYS[1], ttl)
  left = tonumber(ttl)
end
return math.max(left, 1)
