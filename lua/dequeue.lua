-- Finishes tasks: removes each whose score is the receipt's, or lets the
-- version that waited take its place.
-- ARGV[1] wake channel, then two per task: id, score
-- RETURNS one number per task: 1 done   0 stale, nothing changed
--         2 the task is gone though its receipt's lease has not ended
-- May run twice: the receipt is used up by the first run, so that the second
-- changes nothing; it answers 2, or 0 once the lease's time has passed.
local reply, first = {}, nil
redis.call('HLEN', tasks) -- its type, before anything is written

for i = 2, #ARGV, 2 do
  local id, receipt = ARGV[i], tonumber(ARGV[i + 1])
  local score = finite(redis.call('ZSCORE', queue, id))
  if score ~= receipt then
    reply[#reply + 1] = not score and receipt > now and 2 or 0
  else
    local task = live(redis.call('HGET', tasks, id))
    if task and task.due then
      local due = giveback(id, task, 0, task.due)
      if not first or due < first then first = due end
    else
      redis.call('ZREM', queue, id)
      redis.call('HDEL', tasks, id)
    end
    reply[#reply + 1] = 1
  end
end
wake(ARGV[1], first)
return reply
