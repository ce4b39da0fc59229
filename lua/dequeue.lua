-- Finishes tasks: removes each task whose receipt is still valid, or lets its waiting
-- version take over.
-- KEYS[3] the dead letters
-- ARGV[1] wake channel, then two per task: id, score
-- RETURNS one number per task: 1 done   0 stale   2 gone; 0 and 2: nothing changed
-- RETRY idempotent: the first run uses up the receipt, so a second run changes nothing.
local ids, reply, finished, known, first = {}, {}, {}, {}, nil
for i = 2, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
redis.call('HLEN', tasks) -- check the types before the first write
redis.call('ZCARD', KEYS[3])
local scores, field = redis.call('ZMSCORE', queue, unpack(ids)), reader(states, ids, 16)

for i, id in ipairs(ids) do
  local receipt, stored, task = ARGV[2 * i + 1], field(i), nil
  if not known[id] then -- else an earlier entry of this call has used up the receipt
    local lease = not stored and '' or string.match(stored, '^%d*%+?%d?:([%d.]*):$')
    if scores[i] == receipt and (lease == '' or lease == receipt) then
      task = false -- the most common and cheapest case: no waiting version, and not moved
    else
      task = match(scores[i], stored, tonumber(receipt))
    end
  end
  if task and (task.due or task.revived) then needAll() end
  if task and task.due then
    local due = giveback(id, task, 0, task.due)
    if not first or due < first then first = due end
  elseif task ~= nil then -- also a state field not written by this library: finishing the task removes it
    finished[#finished + 1] = id
    unbury(id, task)
  end
  if task ~= nil then known[id] = true end
  reply[i] = task ~= nil and 1 or known[id] and 0 or staleOrGone(id)
end
if #finished > 0 then
  need('HDEL', tasks)
  redis.call('ZREM', queue, unpack(finished))
  redis.call('HDEL', tasks, unpack(finished))
  redis.call('HDEL', states, unpack(finished))
end
wake(ARGV[1], first)
return reply
