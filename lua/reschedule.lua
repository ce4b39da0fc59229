-- Gives a task a new due time. One that is leased gets it as a version that
-- waits: it will be due again then, once its holder has finished.
-- ARGV[1] id   ARGV[2] delay in seconds   ARGV[3] wake channel
-- RETURNS 1 done   0 no such task   -1 a field that is not ours
-- Not repeated by itself: the task may have moved on between two runs.
local id, due = ARGV[1], now + tonumber(ARGV[2])
local score = redis.call('ZSCORE', queue, id)
if not score then return 0 end
local task = live(redis.call('HGET', tasks, id))
score = finite(score)
if not task or not score then return -1 end

needAll()
local waited = task.due
task, score = settle(task, score)
if leased(task, score) then
  move(id, score) -- to where it is: the write that lets the next one through on a full server
  store(id, task.attempt, task.lease, due, task.payload)
  return 1
end
move(id, due)
if waited then store(id, 0, nil, nil, task.payload) end
wake(ARGV[3], due)
return 1
