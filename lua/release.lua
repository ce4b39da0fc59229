-- Releases a lock that the token holds, and publishes that it is free.
-- KEYS[1] the lock
-- ARGV[1] token   ARGV[2] wake channel
-- RETURNS 0 the token does not hold it
--         n > 0 released, and n - 1 subscribers were notified
-- RETRY idempotent: a token is used for one acquisition only, so a second run releases nothing.
local holder = redis.pcall('GET', KEYS[1])
if holder ~= ARGV[1] then
  return denied(holder) or 0
end
redis.call('DEL', KEYS[1])
return publish(ARGV[2], '') + 1
