-- Gives tasks back to the queue, each due after its own delay; or gives each of them the payload and the due time of what comes next, as if
-- it were new: the next occurrence of a periodic task. If a task has a waiting version, that version takes over at its own due time instead.
-- KEYS[3] the dead letters   KEYS[7] the last errors   KEYS[8] the queue's pause and limits   KEYS[9] its counts
-- ARGV six per task: id, score, delay in seconds, what it counts as ('retried', 'done', or '' for an attempt that does not count), '', the
--         error of one that has failed
--         or: id, score, Unix seconds, what it counts as, payload of what comes next, ''
-- RETURNS one number per task: 1 done   0 stale   2 gone   -1 a state field not written by this library; of these three, nothing changed
-- USES rights, prelude, wake, freed, failure, tally, fields, groups
-- RETRY idempotent: the first run uses up the receipt, so a second run changes nothing.
local reply, first, counts = {}, nil, { retried = 0, done = 0, [''] = 0 }
redis.call('ZCARD', KEYS[3]) -- check the types before the first write
redis.call('ZCARD', KEYS[5])
needAll()
needGroups()
for i = 5, #ARGV, 6 do
  if ARGV[i] ~= '' then
    redis.call('HLEN', KEYS[2])
    need('HSET', KEYS[2])
  end
end

for i = 1, #ARGV, 6 do
  local id, at, as, payload, failure = ARGV[i], tonumber(ARGV[i + 2]), ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]
  local task = held(id, tonumber(ARGV[i + 1]))
  if task then
    local hasNext = payload ~= '' and not task.due
    if hasNext then task.due = at end -- it takes over as a waiting version does
    local due = giveback(id, task, math.max(task.attempt - (as == '' and 1 or 0), 0), now + at)
    if hasNext then redis.call('HSET', KEYS[2], id, payload) end
    if failure ~= '' and not task.due and task.attempt > 0 then keepError(id, failure) end
    if not first or due < first then first = due end
    counts[as] = counts[as] + 1
  end
  reply[#reply + 1] = task and 1 or task == nil and staleOrGone(id) or -1
end
tally('retried', counts.retried)
tally('done', counts.done)
wake(earlier(first, earliestPromoted))
freed(#reply)
return reply
