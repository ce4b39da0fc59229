-- Acquires a lock, or returns how much longer another token may hold it.
-- KEYS[1] the lock
-- ARGV[1] token   ARGV[2] TTL in ms
-- RETURNS 0 the token holds the lock now, for the whole TTL
--         n > 0 another token holds it, for n ms at most
-- RETRY idempotent: the second run finds that its own token holds the lock.
local token, ttl = ARGV[1], ARGV[2]

if redis.call('SET', KEYS[1], token, 'NX', 'PX', ttl) then
  return 0
end
local holder, left = redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
if holder == token then
  -- Never shorten the TTL. This run may be a late copy of an attempt: the client has
  -- retried it, got the reply of the retry, and extended the lock since. Write in any case:
  -- a WAIT behind this script counts what this connection has written.
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(left, tonumber(ttl))))
  return 0
end

-- The key has no TTL: its holder died between SETNX and EXPIRE, or is a client that
-- never sets a TTL. Give it one, so that the wait for it ends.
if left == -1 then
  redis.call('PEXPIRE', KEYS[1], ttl)
  left = tonumber(ttl)
end
return math.max(left, 1)
