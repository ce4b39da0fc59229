-- DEFINES clearGone, stockOf, takeUnits, standing, writeStocks
-- USES rights, failure, state, stock, groups, leases
-- For take.lua and enqueue_group.lua.

-- Clears what is left of tasks that a foreign consumer has removed, and takes their fields off the list: once, where an ID comes again.
local function clearGone(ids, scores, fields)
  local cleared = {}
  for i, id in ipairs(ids) do
    if fields[i] and (KEYS[14] or string.byte(fields[i], 1) ~= 64) and not scores[i] and not waitsUntil(fields[i]) and (cleared[id] or not redis.call('ZSCORE', KEYS[3], id)) then
      if not cleared[id] then
        need('HDEL', KEYS[4])
        need('HINCRBY', KEYS[12])
        if groupOf(holdsOf(fields[i])) then needGroups() end
        settleGone(id, fields[i])
        redis.call('HDEL', KEYS[4], id)
        unlease({ id })
        forgetErrors({ id })
        if KEYS[14] then leaveGroups({ { id, fields[i] } }) end
      end
      cleared[id], fields[i] = true, false
    end
  end
end

-- Returns of an item how many units are left, and how many this script has taken. Nothing is left of an item without a stock.
local stocks = {}
local function stockOf(item)
  local stock = stocks[item]
  if not stock then
    local counts = redis.call('HMGET', KEYS[12], 'total:' .. item, 'held:' .. item, 'sold:' .. item)
    local left = counts[1] and tonumber(counts[1]) - tonumber(counts[2] or 0) - tonumber(counts[3] or 0)
    stock = { left = left or -math.huge, taken = 0 }
    stocks[item] = stock
  end
  return stock
end

-- Takes units for a task. Returns false if too few are left, unless the task has them whatever is left.
local function takeUnits(stock, units, restores)
  if stock.left < units and not restores then return false end
  stock.left, stock.taken = stock.left - units, stock.taken + units
  return true
end

-- Returns the outcome for a task that is to hold units where there is one of that ID: kept if that one holds units of the same item, and is in
-- the same group. before is what the same script has written in front of its field; field is what was there.
local function standing(holds, before, field)
  local other = before or holdsOf(field)
  if groupOf(other) ~= groupOf(holds) then return 8 end
  local _, item = unitsOf(holds)
  local _, has = unitsOf(other)
  return has == item and 3 or 7
end

local function writeStocks()
  for item, stock in pairs(stocks) do
    if stock.taken > 0 then redis.call('HINCRBY', KEYS[12], 'held:' .. item, string.format('%d', stock.taken)) end
  end
end
