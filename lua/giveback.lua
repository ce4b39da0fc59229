-- Gives tasks back, due after a delay; where a version waited, that one takes
-- over at its own time instead.
-- KEYS[3] the dead letters
-- ARGV[1] wake channel   ARGV[2] delay in seconds   ARGV[3] attempts to take off
-- then two per task: id, score
-- RETURNS one number per task: 1 done   0 stale   -1 a field that is not ours; nothing changed by these
-- May run twice: the first run uses up the receipt.
local delay, off, reply, first = tonumber(ARGV[2]), tonumber(ARGV[3]), {}, nil
redis.call('HLEN', tasks) -- the types, before anything is written
redis.call('ZCARD', KEYS[3])

for i = 4, #ARGV, 2 do
  local id = ARGV[i]
  local task = held(id, tonumber(ARGV[i + 1]))
  if task then
    local due = giveback(id, task, math.max(task.attempt - off, 0), now + delay)
    if not first or due < first then first = due end
  end
  reply[#reply + 1] = task and 1 or task == nil and 0 or -1
end
wake(ARGV[1], first)
return reply
