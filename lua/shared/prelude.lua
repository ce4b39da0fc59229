-- DEFINES now, us, text, finite
-- For all scripts of a queue.
--   KEYS[1] the queue: zset, id -> score in Unix seconds
--   KEYS[2] its tasks: hash, id -> payload; nothing for an empty payload
--   KEYS[4] their states: hash, id -> state field, see state.lua
-- Each redis.call names its key there, as KEYS[n]: there are proxies that reject a variable.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local us = tonumber(time[1]) * 1000000 + tonumber(time[2])

-- Writes a number so that reading it gives the same double. Redis's own conversion loses digits.
-- Between 2004 and 2106 the doubles of Unix seconds are further apart than what seven decimals
-- distinguish, and to print whole numbers costs a third of '%.17g'.
local function text(x)
  local whole = math.floor(x)
  local rest = math.floor((x - whole) * 10000000 + 0.5)
  if x >= 1073741824 and x < 4294967296 and rest < 10000000 then
    return string.format('%d.%07d', whole, rest)
  end
  return string.format('%.17g', x)
end

-- Reads a finite number; nil for anything else.
local function finite(s)
  local x = s and tonumber(s)
  if x and x > -1e300 and x < 1e300 then return x end
end
