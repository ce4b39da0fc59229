-- Adds tasks that take units of what is for sale, in the order given: those that come first get them.
-- KEYS[3] the dead letters   KEYS[10] what is done, if the policy is once   KEYS[12] see stock.lua
-- ARGV[1] and ARGV[2] as of enqueue.lua; then six per task: when it is due, as there; id, payload, units, item, and '1' if it has the units whatever
-- is left, else ''
-- RETURNS { ARGV[2] for the next script of the batch, one number per task as of enqueue.lua; 6 sold out   7 there is a task of that ID
--           that holds nothing, or units of another item; of these two, and of 3 and 5, nothing changed. No numbers if all are added }
-- USES unpack, rights, prelude, new, wake, read, state, fields, put, stock, sale
-- RETRY never: as of enqueue.lua.
local ids = {}
for i = 4, #ARGV, 6 do ids[#ids + 1] = ARGV[i] end
local scores, fields = redis.call('ZMSCORE', KEYS[1], unpack(ids)), fieldsOf(unpack(ids))
local done = within and redis.call('ZMSCORE', KEYS[10], unpack(ids)) or {}
redis.call('HLEN', KEYS[2]) -- check the types before the first write
redis.call('ZCARD', KEYS[3])
needAll()
need('HSET', KEYS[2])
need('HDEL', KEYS[2])
need('HINCRBY', KEYS[12])

for i, id in ipairs(ids) do
  if not scores[i] and holdsOf(fields[i]) and not (decode(fields[i]) or {}).dead then -- a foreign consumer has removed its task
    settleGone(id, fields[i])
    redis.call('HDEL', KEYS[4], id)
    fields[i] = false
  end
end
local outcomes, known = { text(base + #ids * 0.000001) }, {}
local entries, states, stored, empty = {}, {}, {}, {}
for i, id in ipairs(ids) do
  local at = 6 * i - 3
  local due, payload = dueAt(ARGV[at]), ARGV[at + 2]
  local outcome, holds = outcomeOf(tonumber(ARGV[at + 3]), ARGV[at + 4], ARGV[at + 5] ~= '', known[id], scores[i], fields[i], done[i])
  outcomes[i + 1] = outcome
  if outcome == 1 then
    append(entries, text(due), id)
    append(states, id, holds .. '::')
    if payload ~= '' then append(stored, id, payload) else append(empty, id) end
    if not first or due < first then first = due end
    known[id] = holds
  end
end
if #entries > 0 then
  redis.call('ZADD', KEYS[1], unpack(entries)) -- first: a full server rejects it before anything is written
  redis.call('HSET', KEYS[4], unpack(states))
  if #stored > 0 then redis.call('HSET', KEYS[2], unpack(stored)) end
  if #empty > 0 then redis.call('HDEL', KEYS[2], unpack(empty)) end
  writeStocks()
  wake(first, #entries / 2)
end
return #entries == 2 * #ids and { outcomes[1] } or outcomes
