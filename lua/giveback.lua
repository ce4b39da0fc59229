-- Gives tasks back, each due after a delay of its own; where a version waited, that one takes
-- over at its own time instead.
-- KEYS[3] the dead letters
-- ARGV[1] wake channel, then four per task: id, score, delay in seconds, attempts to take off
-- RETURNS one number per task: 1 done   0 stale   -1 a field that is not ours; nothing changed by these
-- May run twice: the first run uses up the receipt.
local reply, first = {}, nil
redis.call('HLEN', tasks) -- the types, before anything is written
redis.call('ZCARD', KEYS[3])
needAll()

for i = 2, #ARGV, 4 do
  local id, delay, off = ARGV[i], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local task = held(id, tonumber(ARGV[i + 1]))
  if task then
    local due = giveback(id, task, math.max(task.attempt - off, 0), now + delay)
    if not first or due < first then first = due end
  end
  reply[#reply + 1] = task and 1 or task == nil and 0 or -1
end
wake(ARGV[1], first)
return reply
