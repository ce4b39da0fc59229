-- Releases a lock that the token holds, gives back the fences that were reserved
-- with it and not used, and wakes a waiter.
-- KEYS[1] the lock   KEYS[2] the last fence reserved
-- ARGV[1] token   ARGV[2] wake channel   ARGV[3] fences not used
-- RETURNS 0 the token does not hold it
--         n > 0 released, and n - 1 were told
-- May run twice: a token is used once.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local counted = redis.call('EXISTS', KEYS[2]) == 1
redis.call('DEL', KEYS[1]) -- first, so that a full server lets the next one through
-- Nobody can have reserved others since. A counter that is not ours stays so. Where this
-- is denied, the next fences are higher than they need to be, and no worse.
if counted then redis.pcall('DECRBY', KEYS[2], ARGV[3]) end
-- A hint: where PUBLISH is denied, waiters look by themselves.
local told = redis.pcall('PUBLISH', ARGV[2], '')
return type(told) == 'number' and told + 1 or 1
