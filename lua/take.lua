-- Adds tasks that take units of what is for sale, in the order given: those that come first get them.
-- KEYS[3] the dead letters   KEYS[10] what is done, if the policy is once   KEYS[12] see stock.lua
-- ARGV as of enqueue.lua; a group of tasks has what stands in front of their state fields, see state.lua, and '1' if they have the units whatever
--      is left, else ''
-- RETURNS { ARGV[2] for the next script of the batch, one number per task as of enqueue.lua; 6 sold out   7 there is a task of that ID
--           that holds nothing, or units of another item; of these two, and of 3 and 5, nothing changed. No numbers if all are added }
-- USES bound, unpack, rights, prelude, new, wake, tasks, once, sale, state
-- RETRY never: as of enqueue.lua.
if isFull and isFull() then return refuse() end
local scores, fields = redis.call('ZMSCORE', KEYS[1], unpack(ids)), redis.call('HMGET', KEYS[4], unpack(ids))
local done = within and redis.call('ZMSCORE', KEYS[10], unpack(ids)) or {}
local left = redis.call('HLEN', KEYS[2]) > 0 -- perhaps payloads of these IDs
redis.call('ZCARD', KEYS[3]) -- check the type before the first write
clearGone(ids, scores, fields)

local outcomes, known = { text(base + #ids * 0.000001) }, {}
local new, states, stored, empty, to, first = {}, {}, {}, {}, 0, math.huge
for _, take in ipairs(extras) do
  local holds, restores = take[1], take[2] == '1'
  local units, item = unitsOf(holds)
  local stock, n, state = stockOf(item), tonumber(units), holds .. '::'
  for i = take.from, take.to do
    local id, outcome = ids[i], nil
    if known[id] or scores[i] or fields[i] then outcome = standing(holds, known[id], fields[i]) end
    if not outcome and within and isDone(id, scores[i], fields[i], done[i]) then outcome = 5 end
    if not outcome and not takeUnits(stock, n, restores) then outcome = 6 end
    outcomes[i + 1] = outcome or 1
    if not outcome then
      local payload = payloads[i] or ''
      known[id], first = holds, math.min(first, take.due)
      new[to + 1], new[to + 2] = entries[2 * i - 1], id
      states[to + 1], states[to + 2] = id, state
      if payload ~= '' then stored[#stored + 1], stored[#stored + 2] = id, payload else empty[#empty + 1] = id end
      to = to + 2
    end
  end
end
if to > 0 then
  need('HSET', KEYS[2])
  need('HSET', KEYS[4])
  need('HINCRBY', KEYS[12])
  need('HDEL', KEYS[2])
  redis.call('ZADD', KEYS[1], unpack(new)) -- first: a full server rejects it before anything is written
  redis.call('HSET', KEYS[4], unpack(states))
  if #stored > 0 then redis.call('HSET', KEYS[2], unpack(stored)) end
  if left and #empty > 0 then redis.call('HDEL', KEYS[2], unpack(empty)) end
  writeStocks()
  wake(first, to / 2)
end
return to == 2 * #ids and { outcomes[1] } or outcomes
