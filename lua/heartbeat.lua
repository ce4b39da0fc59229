-- Extends a claim: gives the task a new lease that starts now.
-- KEYS[3] the dead letters
-- ARGV[1] id   ARGV[2] score   ARGV[3] lease in seconds
-- RETURNS the new score   '' stale   '-' a field not written by this library; '' and '-': nothing changed
-- RETRY idempotent: the first run uses up the receipt, so a second run changes nothing.
local id = ARGV[1]
redis.call('ZCARD', KEYS[3]) -- check its type before the first write
local task = held(id, tonumber(ARGV[2]))
if task == nil then return '' end
if not task then return '-' end

need('ZADD', queue)
need('HSET', tasks)
local lease = now + tonumber(ARGV[3])
move(id, lease)
store(id, task.attempt, lease, task.due, task.payload)
unbury(id, task)
return text(lease)
