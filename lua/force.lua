-- Releases a lock whoever holds it, and wakes a waiter.
-- KEYS[1] the lock
-- ARGV[1] wake channel
-- RETURNS 1 released   0 nobody held it
if not redis.call('GET', KEYS[1]) then
  return 0
end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[1], '')
return 1
