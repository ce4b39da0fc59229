-- Gives a task that the receipt holds a new lease from now.
-- ARGV[1] id   ARGV[2] score   ARGV[3] lease in seconds
-- RETURNS the new score   '' stale   '-' a field that is not ours; nothing changed by these
-- May run twice: the first run uses up the receipt.
local id = ARGV[1]
if finite(redis.call('ZSCORE', queue, id)) ~= tonumber(ARGV[2]) then return '' end
local task = live(redis.call('HGET', tasks, id))
if not task then return '-' end

local lease = now + tonumber(ARGV[3])
move(id, lease)
store(id, task.attempt, lease, task.due, task.payload)
return text(lease)
