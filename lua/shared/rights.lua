-- DEFINES may, need
-- What the user may run.

-- Says whether the ACL allows the user a command on a key, or on a channel. Redis 6 cannot be asked.
-- Redis 8.6 wants as many words as the command takes: three, or else three and more.
local function may(command, key)
  if not redis.acl_check_cmd then return true end
  if command == 'SPUBLISH' or command == 'ZSCORE' or command == 'HGET' then return redis.acl_check_cmd(command, key, '') end
  return redis.acl_check_cmd(command, key, '', '')
end

-- Ends the script with an error if the user may not run a command on a key. A script calls it,
-- before its first write, for each command that it writes with later: there is no rollback.
local function need(command, key)
  if not may(command, key) then error({ err = 'NOPERM this user may not run ' .. command .. ', which the script needs' }) end
end
