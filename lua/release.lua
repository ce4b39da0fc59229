-- Releases a lock that the token holds, gives back the fences that were reserved with it and not used, and wakes the next in
-- line. Takes a member out of the line whose process does not wait any more, whether the token holds the lock or not.
-- KEYS[1] the lock   KEYS[2] its line   KEYS[3] the last fence reserved, if there may be fences
-- ARGV[1] token   ARGV[2] member that leaves the line, or ''   ARGV[3] fences not used   ARGV[4] the last that was reserved, or '' if no reply has said so
-- RETURNS 0 the token does not hold it
--         n > 0 released, and n - 1 processes were woken
-- RETRY idempotent: a token is used for one acquisition only, so a second run releases nothing. It may wake one more process.
local holder, last = redis.pcall('GET', KEYS[1])
local released, member = holder == ARGV[1], ARGV[2] or ''
if released then
  if KEYS[3] then last = redis.pcall('GET', KEYS[3]) end
  redis.call('DEL', KEYS[1]) -- first: after this DEL a full server accepts the next write
  -- If another fence is the last, the lock was adopted, and has that. Beside adoptions only the lock's holder reserves
  -- fences. The command fails on a counter not written by this library, which stays as it is. If the server denies
  -- the command, the next fences are higher than necessary, which is safe.
  if type(last) == 'string' and (ARGV[4] == '' or ARGV[4] == last) then redis.pcall('DECRBY', KEYS[3], ARGV[3]) end
end
local first = leave(member)
if released then return wake() + 1 end
-- It may have been woken before it left: then the next one is, as long as the lock is free.
if member ~= '' and not holder then wake() end
if first and holder then tellFirst(redis.call('PTTL', KEYS[1])) end
return denied(holder) or 0
