-- Releases a lock that the token holds, gives back the fences that were reserved with it and not used, and reserves the lock for the
-- next in line. Takes a member out of the line whose process does not wait any more, whether the token holds the lock or not; a lock
-- that is reserved for it goes to the next.
-- KEYS[1] the lock   KEYS[2] its line   KEYS[3] the last fence reserved, if there may be fences
-- ARGV[1] token   ARGV[2] member that leaves the line, or ''   ARGV[3] fences not used   ARGV[4] the last that was reserved, or '' if no reply has said so
-- RETURNS 0 the token does not hold it
--         n > 0 released, and n - 1 processes were woken
-- USES lock_unwaited, kinds, lock_line
-- RETRY idempotent: a token is used for one acquisition only, and a member for one wait, so a second run releases nothing. It may wake
-- the first in line, if the lock is free.
local member, last = ARGV[2] or '', nil
local first = leave(member)
if holder == ARGV[1] then
  if KEYS[3] then last = redis.pcall('GET', KEYS[3]) end
  local woken = passOn()
  -- If another fence is the last, the lock was adopted, and has that. Beside adoptions only the lock's holder reserves
  -- fences. The command fails on a counter not written by this library, which stays as it is. If the server denies
  -- the command, the next fences are higher than necessary, which is safe.
  if type(last) == 'string' and (ARGV[4] == '' or ARGV[4] == last) then redis.pcall('DECRBY', KEYS[3], ARGV[3]) end
  return woken + 1
end
if member ~= '' and (not holder or holder == '>' .. member) then
  passOn()
elseif first and holder then
  tellFirst(redis.call('PTTL', KEYS[1]))
end
return denied(holder) or 0
