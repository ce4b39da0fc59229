-- Releases a lock that the token holds, gives back the fences that were reserved with it
-- and not used, and publishes that the lock is free.
-- KEYS[1] the lock   KEYS[2] the last fence reserved
-- ARGV[1] token   ARGV[2] wake channel   ARGV[3] fences not used
-- RETURNS 0 the token does not hold it
--         n > 0 released, and n - 1 subscribers were notified
-- RETRY idempotent: a token is used for one acquisition only, so a second run releases nothing.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local counted = redis.call('EXISTS', KEYS[2]) == 1
redis.call('DEL', KEYS[1]) -- first: after this DEL a full server accepts the next write
-- No other client can have reserved fences since: only the lock's holder does. The command
-- fails on a counter not written by this library, which stays as it is. If the server denies
-- the command, the next fences are higher than necessary, which is safe.
if counted then redis.pcall('DECRBY', KEYS[2], ARGV[3]) end
return publish(ARGV[2], '') + 1
