-- Says what keeps this user from taking locks.
-- KEYS[1] a key that no lock can have
-- ARGV commands, see check.lua
-- RETURNS which of them are denied, see check.lua; an error of a server that cannot be written to
-- USES check
-- RETRY readOnly: it deletes what is not there.
local found = denied()
if #found == 0 or #found == 1 and found[1] == 1 then redis.call('DEL', KEYS[1]) end
return found
