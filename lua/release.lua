-- Releases a lock that the token holds, and wakes a waiter.
-- KEYS[1] the lock
-- ARGV[1] token   ARGV[2] wake channel
-- RETURNS 0 the token does not hold it
--         n > 0 released, and n - 1 were told
-- May run twice: a token is used once.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
-- A hint: where PUBLISH is denied, waiters look by themselves.
local told = redis.pcall('PUBLISH', ARGV[2], '')
return type(told) == 'number' and told + 1 or 1
