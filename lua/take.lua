-- Adds tasks that take units of what is for sale, in the order given: those that come first get them.
-- KEYS[3] the dead letters   KEYS[10] what is done, if the policy is once   KEYS[12] see stock.lua
-- ARGV[1] and ARGV[2] as of enqueue.lua; then six per task: when it is due, as there; id, payload, units, item, and '1' if it has the units whatever
-- is left, else ''
-- RETURNS { ARGV[2] for the next script of the batch, one number per task as of enqueue.lua; 6 sold out   7 there is a task of that ID
--           that holds nothing, or units of another item; of these two, and of 3 and 5, nothing changed. No numbers if all are added }
-- USES unpack, rights, prelude, new, wake, once, sale
-- RETRY never: as of enqueue.lua.
local args, ids = ARGV, {}
for i = 4, #args, 6 do ids[#ids + 1] = args[i] end
local scores, fields = redis.call('ZMSCORE', KEYS[1], unpack(ids)), redis.call('HMGET', KEYS[4], unpack(ids))
local done = within and redis.call('ZMSCORE', KEYS[10], unpack(ids)) or {}
redis.call('HLEN', KEYS[2]) -- check the types before the first write
redis.call('ZCARD', KEYS[3])

clearGone(ids, scores, fields)

local outcomes, known, texts = { text(base + #ids * 0.000001) }, {}, {}
local entries, states, stored, empty, to, first = {}, {}, {}, {}, 0, math.huge
for i, id in ipairs(ids) do
  local at = 6 * i - 3
  local spec, payload, units = args[at], args[at + 2], args[at + 3]
  local stock, n = stockOf(args[at + 4], units), tonumber(units)
  local outcome = (known[id] or scores[i] or fields[i]) and standing(stock[units], known[id], fields[i])
  if not outcome and within and isDone(id, scores[i], fields[i], done[i]) then outcome = 5 end
  if not outcome and stock.left < n and args[at + 5] == '' then outcome = 6 end
  outcomes[i + 1] = outcome or 1
  if not outcome then
    local due = dueAt(spec)
    if not texts[spec] then texts[spec] = text(due) end
    stock.left, stock.taken, known[id] = stock.left - n, stock.taken + n, stock[units]
    entries[to + 1], entries[to + 2] = texts[spec], id
    states[to + 1], states[to + 2] = id, stock[units] .. '::'
    if payload ~= '' then stored[#stored + 1], stored[#stored + 2] = id, payload else empty[#empty + 1] = id end
    to, first = to + 2, math.min(first, due)
  end
end
if to > 0 then
  need('HSET', KEYS[2])
  need('HSET', KEYS[4])
  need('HINCRBY', KEYS[12])
  if #empty > 0 then need('HDEL', KEYS[2]) end
  redis.call('ZADD', KEYS[1], unpack(entries)) -- first: a full server rejects it before anything is written
  redis.call('HSET', KEYS[4], unpack(states))
  if #stored > 0 then redis.call('HSET', KEYS[2], unpack(stored)) end
  if #empty > 0 then redis.call('HDEL', KEYS[2], unpack(empty)) end
  writeStocks()
  wake(first, to / 2)
end
return to == 2 * #ids and { outcomes[1] } or outcomes
