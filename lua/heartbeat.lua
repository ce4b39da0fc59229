-- Extends a claim: gives the task a new lease that starts now. The receipt stays as it is.
-- KEYS[3] the dead letters
-- ARGV[1] id   ARGV[2] receipt   ARGV[3] lease in seconds
-- RETURNS 1 done   0 stale   2 gone   -1 a field not written by this library; of these three, nothing changed
-- RETRY idempotent: each run changes only when the lease ends, and only as long as the receipt is good.
local id, receipt = ARGV[1], tonumber(ARGV[2])
redis.call('ZCARD', KEYS[3]) -- check its type before the first write
local task = held(id, receipt)
if task == nil then return staleOrGone(id) end
if not task then return -1 end

need('ZADD', queue)
need('HSET', tasks)
local lease = now + tonumber(ARGV[3])
move(id, lease)
store(id, task.attempt, lease, task.due, task.payload, receipt)
unbury(id, task)
return 1
