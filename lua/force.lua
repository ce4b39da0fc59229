-- Releases a lock, whatever its token, and publishes that it is free.
-- KEYS[1] the lock
-- ARGV[1] wake channel
-- RETURNS the token that held it, as text: released   0 it was not held
-- RETRY never: if the script runs twice, the second run may release the next holder's lock.
local holder = redis.call('GET', KEYS[1])
if not holder then
  return 0
end
redis.call('DEL', KEYS[1])
publish(ARGV[1], '')
return holder
