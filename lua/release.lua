-- Releases a lock that the token holds, gives back the fences that were reserved with it and not used, and publishes
-- that the lock is free.
-- KEYS[1] the lock   KEYS[2] the last fence reserved, if there may be fences
-- ARGV[1] token   ARGV[2] wake channel   ARGV[3] fences not used   ARGV[4] the last that was reserved, or '' if no reply has said so
-- RETURNS 0 the token does not hold it
--         n > 0 released, and n - 1 subscribers were notified
-- RETRY idempotent: a token is used for one acquisition only, so a second run releases nothing.
local holder, last = redis.pcall('GET', KEYS[1])
if holder ~= ARGV[1] then return denied(holder) or 0 end
if KEYS[2] then last = redis.pcall('GET', KEYS[2]) end
redis.call('DEL', KEYS[1]) -- first: after this DEL a full server accepts the next write
-- If another fence is the last, the lock was adopted, and has that. Beside adoptions only the lock's holder reserves
-- fences. The command fails on a counter not written by this library, which stays as it is. If the server denies
-- the command, the next fences are higher than necessary, which is safe.
if type(last) == 'string' and (ARGV[4] == '' or ARGV[4] == last) then redis.pcall('DECRBY', KEYS[2], ARGV[3]) end
return publish(ARGV[2], '') + 1
