-- Finishes tasks: removes each whose score is the receipt's, or lets the
-- version that waited take its place.
-- KEYS[3] the dead letters
-- ARGV[1] wake channel, then two per task: id, score
-- RETURNS one number per task: 1 done   0 stale, nothing changed
-- May run twice: the first run uses up the receipt.
local ids, reply, gone, known, first = {}, {}, {}, {}, nil
for i = 2, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
redis.call('ZCARD', KEYS[3]) -- its type, before anything is written
local scores, field = redis.call('ZMSCORE', queue, unpack(ids)), reader(ids)

for i, id in ipairs(ids) do
  local receipt, waits, task = ARGV[2 * i + 1], field(i), nil
  if not known[id] then -- else the one before has used the receipt up
    if scores[i] == receipt and (not waits or string.find(waits, '^%d*:[%d.]*::')) then
      task = false -- the most common case, and the cheapest: nothing waits
    else
      task = match(scores[i], waits, tonumber(receipt))
    end
  end
  if task and (task.due or task.revived) then needAll() end
  if task and task.due then
    local due = giveback(id, task, 0, task.due)
    if not first or due < first then first = due end
  elseif task ~= nil then -- a field that is not ours too: whoever finishes it removes it
    gone[#gone + 1] = id
    unbury(id, task)
  end
  if task ~= nil then known[id] = true end
  reply[i] = task ~= nil and 1 or 0
end
if #gone > 0 then
  need('HDEL', tasks)
  redis.call('ZREM', queue, unpack(gone))
  redis.call('HDEL', tasks, unpack(gone))
end
wake(ARGV[1], first)
return reply
