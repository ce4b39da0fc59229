-- Gives a task a new due time. A leased task gets it as a waiting version: once its holder
-- has finished, the task is due again at that time.
-- KEYS[8] the queue's pause and limits   KEYS[9] its counts   KEYS[14] see groups.lua
-- ARGV[1] id   ARGV[2] delay in seconds
-- RETURNS 1 done   0 no such task   -1 a state field not written by this library
-- USES rights, prelude, wake, failure, state, groups, fields, leases
-- RETRY never: the task may have changed its state between two runs.
local id, due = ARGV[1], now + tonumber(ARGV[2])
local score = redis.call('ZSCORE', KEYS[1], id)
local field = redis.call('HGET', KEYS[4], id)
local at, group = waitsUntil(field), groupOf(holdsOf(field))
if not score and at then
  need('HSET', KEYS[4])
  needGroups()
  moveInGroup(group, id, at, unlike(due, at), holdsOf(field))
  wake(earliestPromoted)
  return 1
end
if not score then return 0 end
local task = live(field)
score = finite(score)
if not task or not score then return -1 end

needAll()
if group then needGroups() end
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
  unlease({ id })
  store(id, task, task.attempt)
  if task.attempt == 0 then forgetErrors({ id }) end
end
if group then fillGroup(group) end
wake(earlier(due, earliestPromoted))
return 1
