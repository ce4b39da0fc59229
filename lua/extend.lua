-- Gives a lock that the token holds a TTL of at least ARGV[2] from now.
-- KEYS[1] the lock
-- ARGV[1] token   ARGV[2] TTL in ms
-- RETURNS 1 done   0 the token does not hold it
-- RETRY idempotent, and in any order with other extensions: it never makes a TTL shorter.
local holder = redis.pcall('GET', KEYS[1])
if holder ~= ARGV[1] then
  return denied(holder) or 0
end
-- Write in any case: a WAIT behind this script counts what this connection has written.
local left = redis.call('PTTL', KEYS[1])
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(left, tonumber(ARGV[2]))))
return 1
