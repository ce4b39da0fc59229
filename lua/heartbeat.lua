-- Extends a claim: the task is leased for at least ARGV[3] from now. The receipt stays as it is.
-- KEYS[3] the dead letters
-- ARGV[1] id   ARGV[2] receipt   ARGV[3] lease in seconds
-- RETURNS 1 done   0 stale   2 gone   -1 a state field not written by this library; of these three, nothing changed
-- RETRY idempotent, and in any order with other extensions: it never makes a lease shorter,
-- and does nothing once the claim has ended.
local id = ARGV[1]
redis.call('ZCARD', KEYS[3]) -- check the types before the first write
redis.call('ZCARD', KEYS[5])
local task = held(id, tonumber(ARGV[2]))
if task == nil then return staleOrGone(id) end
if not task then return -1 end
if not task.lease then return 0 end -- it was never claimed

need('ZADD', KEYS[1])
need('HSET', KEYS[4])
-- Never shorten a lease. This run may be a late copy: the client has extended it since.
task.lease = math.max(now + tonumber(ARGV[3]), task.lease)
move(id, task.lease)
redis.call('ZADD', KEYS[5], text(task.lease), id)
store(id, task, task.attempt, task.due, true)
return 1
