-- Gives a lock that the token holds a new TTL from now.
-- KEYS[1] the lock
-- ARGV[1] token   ARGV[2] TTL in ms
-- RETURNS 1 done   0 the token does not hold it
-- May run twice: the second run counts.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
