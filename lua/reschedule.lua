-- Gives a task a new due time. A leased task gets it as a waiting version: once its holder
-- has finished, the task is due again at that time.
-- ARGV[1] id   ARGV[2] delay in seconds
-- RETURNS 1 done   0 no such task   -1 a state field not written by this library
-- USES prelude, wake, failure, fields
-- RETRY never: the task may have changed its state between two runs.
local id, due = ARGV[1], now + tonumber(ARGV[2])
local score = redis.call('ZSCORE', KEYS[1], id)
if not score then return 0 end
local task = live(redis.call('HGET', KEYS[4], id))
score = finite(score)
if not task or not score then return -1 end

needAll()
redis.call('ZCARD', KEYS[5]) -- check its type before the first write
local hadLease = task.lease or task.due
local token = task.token
task, score = resolve(task, score)
if leased(task, score) then
  move(id, score) -- perhaps to the score that it has: after this a full server accepts the next write
  store(id, task, task.attempt, due, true)
  return 1
end
due = unlike(due, score, token)
move(id, due)
if hadLease then
  redis.call('ZREM', KEYS[5], id)
  store(id, task, task.attempt)
  if task.attempt == 0 then forgetErrors({ id }) end
end
wake(due)
return 1
