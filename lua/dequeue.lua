-- Finishes tasks: removes each whose score is the receipt's, or lets the
-- version that waited take its place.
-- KEYS[3] the dead letters
-- ARGV[1] wake channel, then two per task: id, score
-- RETURNS one number per task: 1 done   0 stale, nothing changed
-- May run twice: the first run uses up the receipt.
local reply, first = {}, nil
redis.call('HLEN', tasks) -- the types, before anything is written
redis.call('ZCARD', KEYS[3])

for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  local task = held(id, tonumber(ARGV[i + 1]))
  if task and task.due then
    local due = giveback(id, task, 0, task.due)
    if not first or due < first then first = due end
  elseif task ~= nil then -- false too: whoever finishes what is not ours removes it
    redis.call('ZREM', queue, id)
    redis.call('HDEL', tasks, id)
    unbury(id, task)
  end
  reply[#reply + 1] = task ~= nil and 1 or 0
end
wake(ARGV[1], first)
return reply
