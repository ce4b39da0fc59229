-- Adds tasks of groups, in the order given: each is in play at once, or waits. If they take units of what is for sale, too, those that come first
-- get them.
-- KEYS[3] the dead letters   KEYS[10] what is done, if the policy is once   KEYS[12] see stock.lua   KEYS[14] see groups.lua
-- ARGV as of take.lua
-- RETURNS what take.lua does; 8 there is a task of that ID in no group, or in another one: nothing changed
-- USES bound, unpack, rights, prelude, new, wake, tasks, once, groups, fields, put, state, sale, group_new
-- RETRY never: as of enqueue.lua.
redis.call('ZCARD', KEYS[3]) -- check the types before the first write
redis.call('ZCARD', KEYS[14])
if isFull and isFull() then return refuse() end
local scores, fields = redis.call('ZMSCORE', KEYS[1], unpack(ids)), redis.call('HMGET', KEYS[4], unpack(ids))
local done = within and redis.call('ZMSCORE', KEYS[10], unpack(ids)) or {}
needAll()
needGroups()
if unitsOf(extras[1][1]) then need('HINCRBY', KEYS[12]) end
clearGone(ids, scores, fields)

local known = {}
local function enqueueIn(group, holds, i, stock, units, restores)
  local id, due, payload, score, field = ids[i], tonumber(entries[2 * i - 1]), payloads[i] or '', scores[i], fields[i]
  if known[id] or hasPromoted and field then
    flush()
    score, field = redis.call('ZSCORE', KEYS[1], id), redis.call('HGET', KEYS[4], id)
  end
  known[id] = true
  if not waitsUntil(field) and isDone(id, score, field, done[i]) then return 5 end
  if score or field then
    flush()
    return updateInGroup(group, holds, id, due, payload, score, field)
  end
  if stock and not takeUnits(stock, units, restores) then return 6 end
  add(group, holds, due, entries[2 * i - 1], id, payload)
  return 1
end

local outcomes = { text(base + #ids * 0.000001) }
for _, of in ipairs(extras) do
  local holds, group = of[1], groupOf(of[1])
  local units, item = unitsOf(holds)
  local stock = units and stockOf(item)
  for i = of.from, of.to do outcomes[i + 1] = enqueueIn(group, holds, i, stock, tonumber(units), of[2] == '1') end
end
flush()
writeStocks()
wake(earlier(first, earliestPromoted), math.max(countPlays(), 1))
return outcomes
