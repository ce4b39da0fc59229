-- DEFINES clearGone, stockOf, standing, writeStocks
-- USES rights, failure, state, stock
-- For take.lua.

-- Clears what is left of tasks that a foreign consumer has removed, and takes their fields off the list: once, where an ID comes again.
local function clearGone(ids, scores, fields)
  local cleared = {}
  for i, id in ipairs(ids) do
    if fields[i] and string.byte(fields[i], 1) ~= 64 and not scores[i] and (cleared[id] or not redis.call('ZSCORE', KEYS[3], id)) then
      if not cleared[id] then
        need('HDEL', KEYS[4])
        need('HINCRBY', KEYS[12])
        settleGone(id, fields[i])
        redis.call('HDEL', KEYS[4], id)
        redis.call('ZREM', KEYS[5], id)
        forgetErrors({ id })
      end
      cleared[id], fields[i] = true, false
    end
  end
end

-- Returns of an item how many units are left, and of these how many this script has taken; and for a number of units, as text, what stands
-- in front of a state field of a task that holds so many. Nothing is left of an item without a stock.
local stocks = {}
local function stockOf(item, units)
  local stock = stocks[item]
  if not stock then
    local counts = redis.call('HMGET', KEYS[12], 'total:' .. item, 'held:' .. item, 'sold:' .. item)
    local left = counts[1] and tonumber(counts[1]) - tonumber(counts[2] or 0) - tonumber(counts[3] or 0)
    stock = { left = left or -math.huge, taken = 0 }
    stocks[item] = stock
  end
  if not stock[units] then stock[units] = string.format('*%d,%d:', units, #item) .. item end -- '%s' ends at a zero byte
  return stock
end

-- Returns the outcome for a task that is to hold units where there is one of that ID: kept if that one holds units of the same item. before is
-- what the same script has written in front of its field; field is what was there.
local function standing(holds, before, field)
  local other = before or holdsOf(field)
  return other and string.match(other, '^%*%d+(.*)$') == string.match(holds, '^%*%d+(.*)$') and 3 or 7
end

local function writeStocks()
  for item, stock in pairs(stocks) do
    if stock.taken > 0 then redis.call('HINCRBY', KEYS[12], 'held:' .. item, string.format('%d', stock.taken)) end
  end
end
