-- Adds tasks, in the order given. May return before: one new task in new.lua, a batch of new ones in batch.lua.
-- KEYS[3] the dead letters   KEYS[10] what is done, if the policy is once
-- ARGV[1] policy: replace, keep, earliest, latest, keepdue, or 'once:' and for how many seconds what is done keeps its ID
-- ARGV[2] when delays begin at the earliest, in Unix seconds
-- ARGV[3] and what follows: the tasks, see tasks.lua
-- RETURNS { ARGV[2] for the next script of the batch, one number per task: 1 added   2 updated   3 kept   4 deferred   5 done   9 and 10 the
--           queue is full: nothing changed, and all have one of these; 10 there would be room for that one alone. No numbers if all are added }
-- USES bound, batch, unpack, rights, wake, tasks, read, fields, once, put
-- RETRY never: a worker may finish the task between two runs, and the second would add it again.
redis.call('HLEN', KEYS[2]) -- check the types before the first write
redis.call('ZCARD', KEYS[3])
if isFull and isFull() then return refuse() end
local outcomes, known = { nextBase }, {}
local scores, field = redis.call('ZMSCORE', KEYS[1], unpack(ids)), reader(fieldsOf, ids, 16)
local done = within and redis.call('ZMSCORE', KEYS[10], unpack(ids)) or {}

needAll()
need('ZREM', KEYS[1])

-- New tasks, the most common and cheapest case, are written together. A foreign consumer's
-- ZREM may have left a payload of that ID.
local new, stored, empty = {}, {}, {}
local function flush()
  if #new > 0 then redis.call('ZADD', KEYS[1], unpack(new)) end
  if #stored > 0 then redis.call('HSET', KEYS[2], unpack(stored)) end
  if #empty > 0 then redis.call('HDEL', KEYS[2], unpack(empty)) end
  new, stored, empty = {}, {}, {}
end

for i, id in ipairs(ids) do
  local due, payload = tonumber(entries[2 * i - 1]), payloads[i] or ''
  if not known[id] and isDone(id, scores[i], field(i), done[i]) then
    outcomes[i + 1] = 5
  elseif known[id] then -- the same ID for the second time
    flush()
    outcomes[i + 1] = enqueue(id, due, payload, redis.call('ZMSCORE', KEYS[1], id)[1], reader(fieldsOf, { id }, 1)(1))
  elseif scores[i] or field(i) then
    outcomes[i + 1] = enqueue(id, due, payload, scores[i], field(i))
  else
    new[#new + 1], new[#new + 2] = entries[2 * i - 1], id
    local list = payload == '' and empty or stored
    list[#list + 1], list[#list + 2] = id, payload ~= '' and payload or nil
    if not first or due < first then first = due end
    outcomes[i + 1] = 1
  end
  known[id] = outcomes[i + 1] ~= 5
end
flush()
wake(first)
return outcomes
