-- Puts tasks among the dead letters; where a version waited, that one takes over
-- at its own time instead.
-- KEYS[3] the dead letters
-- ARGV[1] wake channel, then three per task: id, score, reason
-- RETURNS one number per task: 1 done   0 stale, nothing changed
-- May run twice: the first run uses up the receipt.
local reply, first = {}, nil
redis.call('HLEN', tasks) -- the types, before anything is written
redis.call('ZCARD', KEYS[3])
needAll()

for i = 2, #ARGV, 3 do
  local id, reason = ARGV[i], ARGV[i + 2]
  local task = held(id, tonumber(ARGV[i + 1]))
  if task and task.due then
    local due = giveback(id, task, 0, task.due)
    if not first or due < first then first = due end
  elseif task then
    bury(id, task.attempt, reason, task.payload)
  elseif task == false then -- a field that is not ours is kept as it is
    bury(id, 0, reason, redis.call('HGET', tasks, id))
  end
  reply[#reply + 1] = task ~= nil and 1 or 0
end
wake(ARGV[1], first)
return reply
