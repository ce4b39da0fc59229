-- Moves tasks to the dead letters. If a task has a waiting version, that version takes
-- over at its own due time instead.
-- KEYS[3] the dead letters   KEYS[8] the queue's pause and limits
-- ARGV[1] how many dead letters may stay, 0 for any number   ARGV[2] for how many seconds each may,
-- 0 for ever; then three per task: id, score, reason
-- RETURNS one number per task: 1 buried   3 the waiting version has taken over instead
--         0 stale   2 gone; 0 and 2: nothing changed
-- USES wake, freed, tally, state, groups, fields, trim
-- RETRY idempotent: the first run uses up the receipt, so a second run changes nothing.
local reply, first, buried, retried = {}, nil, 0, 0
redis.call('ZCARD', KEYS[3]) -- check the types before the first write
redis.call('ZCARD', KEYS[5])
needAll()
needGroups()

for i = 3, #ARGV, 3 do
  local id, reason = ARGV[i], ARGV[i + 2]
  local task = held(id, tonumber(ARGV[i + 1]))
  local answer = 1
  if task and task.due then
    answer, retried = 3, retried + 1
    local due = giveback(id, task, 0, task.due)
    if not first or due < first then first = due end
  elseif task ~= nil then -- also with a field not written by this library
    buried = buried + bury(id, task and task.attempt or 0, reason, task and task.holds or not task and holdsOf(redis.call('HGET', KEYS[4], id)))
  else
    answer = staleOrGone(id)
  end
  reply[#reply + 1] = answer
end
tally('buried', buried)
tally('retried', retried)
if buried > 0 then trim(buried, ARGV[1], ARGV[2]) end
wake(earlier(first, earliestPromoted))
freed(#reply)
return reply
