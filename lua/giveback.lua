-- Gives tasks back to the queue, each due after its own delay; or gives each of them the payload and the due time of what comes next, as if
-- it were new: the next occurrence of a periodic task. If a task has a waiting version, that version takes over at its own due time instead.
-- KEYS[3] the dead letters   KEYS[7] the queue's pause and limits
-- ARGV five per task: id, score, delay in seconds, attempts to take off, ''
--         or: id, score, Unix seconds, 0, payload of what comes next
-- RETURNS one number per task: 1 done   0 stale   2 gone   -1 a state field not written by this library; of these three, nothing changed
-- RETRY idempotent: the first run uses up the receipt, so a second run changes nothing.
local reply, first = {}, nil
redis.call('ZCARD', KEYS[3]) -- check the types before the first write
redis.call('ZCARD', KEYS[5])
needAll()
for i = 5, #ARGV, 5 do
  if ARGV[i] ~= '' then
    redis.call('HLEN', KEYS[2])
    need('HSET', KEYS[2])
  end
end

for i = 1, #ARGV, 5 do
  local id, at, off, payload = ARGV[i], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), ARGV[i + 4]
  local task = held(id, tonumber(ARGV[i + 1]))
  if task then
    local hasNext = payload ~= '' and not task.due
    if hasNext then task.due = at end -- it takes over as a waiting version does
    local due = giveback(id, task, math.max(task.attempt - off, 0), now + at)
    if hasNext then redis.call('HSET', KEYS[2], id, payload) end
    if not first or due < first then first = due end
  end
  reply[#reply + 1] = task and 1 or task == nil and staleOrGone(id) or -1
end
wake(first, #reply)
freed(#reply)
return reply
