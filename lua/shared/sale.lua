-- DEFINES outcomeOf, writeStocks
-- USES state, put
-- For take.lua.

-- Returns of an item how many units are left, and of these how many this script has taken. Nothing is left of one without a stock.
local stocks = {}
local function stockOf(item)
  if not stocks[item] then
    local counts = redis.call('HMGET', KEYS[12], 'total:' .. item, 'held:' .. item, 'sold:' .. item)
    local left = counts[1] and tonumber(counts[1]) - tonumber(counts[2] or 0) - tonumber(counts[3] or 0)
    stocks[item] = { left = left or -math.huge, taken = 0 }
  end
  return stocks[item]
end

-- Returns what becomes of a task that is to take units of an item, and what stands in front of its state field then. before is what the same
-- script has written there; score, field and done are what was there. always takes them whatever is left.
local function outcomeOf(units, item, always, before, score, field, done)
  local behind = string.format(',%d:', #item) .. item -- '%s' ends at a zero byte
  local holds, other = string.format('*%d', units) .. behind, before or holdsOf(field)
  if before or score or (decode(field) or {}).dead then
    return other and string.match(other, '^%*%d+(.*)$') == behind and 3 or 7, other
  end
  if isDone(score, field, done) then return 5 end
  local stock = stockOf(item)
  if not always and stock.left < units then return 6 end
  stock.left, stock.taken = stock.left - units, stock.taken + units
  return 1, holds
end

local function writeStocks()
  for item, stock in pairs(stocks) do
    if stock.taken > 0 then redis.call('HINCRBY', KEYS[12], 'held:' .. item, string.format('%d', stock.taken)) end
  end
end
