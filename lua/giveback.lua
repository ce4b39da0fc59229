-- Gives tasks back, due after a delay; where a version waited, that one takes
-- over at its own time instead.
-- ARGV[1] wake channel   ARGV[2] delay in seconds   ARGV[3] attempts to take off
-- then two per task: id, score
-- RETURNS one number per task: 1 done   0 stale   -1 a field that is not ours; nothing changed by these
-- May run twice: the first run uses up the receipt.
local delay, off, reply, first = tonumber(ARGV[2]), tonumber(ARGV[3]), {}, nil
redis.call('HLEN', tasks) -- its type, before anything is written

for i = 4, #ARGV, 2 do
  local id, result = ARGV[i], 0
  if finite(redis.call('ZSCORE', queue, id)) == tonumber(ARGV[i + 1]) then
    local task = live(redis.call('HGET', tasks, id))
    result = -1
    if task then
      local due = giveback(id, task, math.max(task.attempt - off, 0), now + delay)
      if not first or due < first then first = due end
      result = 1
    end
  end
  reply[#reply + 1] = result
end
wake(ARGV[1], first)
return reply
