-- DEFINES needStock, settle, settleGone
-- USES rights, prelude, state
-- For the scripts that end tasks which hold units of a stock.
--   KEYS[12] the stocks: hash; of each item 'total:<item>', 'held:<item>' and 'sold:<item>'. What is left is the total less both.

-- Checks what settle needs for tasks with these state fields, before the first write of a script. Does nothing where none holds units.
local function needStock(fields)
  for _, field in ipairs(fields) do
    if field and string.byte(field, 1) == 42 then
      if not KEYS[12] then
        need('HGET', KEYS[4])
        return need('HSET', KEYS[4])
      end
      redis.call('HLEN', KEYS[12])
      return need('HINCRBY', KEYS[12])
    end
  end
end

-- Ends what a task holds, as its state field said: the units are sold, or put back. Where the caller did not know that the task holds any, so
-- that there is no KEYS[12], presence.lua does the rest: the field says that the units are held. If they are sold it has a '$', and stands under
-- what is longer than an ID, so that no later task of that ID gets them.
local function settle(id, field, isSold)
  if not field or string.byte(field, 1) ~= 42 then return end
  local holds = holdsOf(field)
  local units, item = unitsOf(holds)
  if not units then return end
  if not KEYS[12] then
    if isSold then id = string.rep('.', 513) .. text(now) .. id end
    while isSold and redis.call('HGET', KEYS[4], id) do id = '.' .. id end -- the clock was set back
    redis.call('HSET', KEYS[4], id, holds .. (isSold and '$' or '::'))
    return
  end
  redis.call('HINCRBY', KEYS[12], 'held:' .. item, '-' .. units)
  if isSold then redis.call('HINCRBY', KEYS[12], 'sold:' .. item, units) end
end

-- Ends what a task holds that is no more, except this field.
local function settleGone(id, field)
  local holds = holdsOf(field)
  if holds then settle(id, field, string.sub(field, #holds + 1) == '$') end
end
