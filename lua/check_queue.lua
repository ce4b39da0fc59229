-- Says what keeps this user from a queue.
-- KEYS[1] the queue
-- ARGV commands, see check.lua
-- RETURNS which of them are denied, see check.lua; an error of a server that cannot be written to, or is older than 6.2
-- USES check
-- RETRY readOnly: it removes a task without an ID, which there is not.
local found = denied()
if #found == 0 or #found == 1 and found[1] == 1 then
  redis.call('ZREM', KEYS[1], '')
  redis.call('ZMSCORE', KEYS[1], '')
end
return found
