-- Releases a lock, whatever its token, and publishes that it is free.
-- KEYS[1] the lock
-- ARGV[1] wake channel
-- RETURNS 1 released   0 it was not held
-- RETRY never: if the script runs twice, the second run may release the next holder's lock.
if not redis.call('GET', KEYS[1]) then
  return 0
end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[1], '')
return 1
