-- What the queue's scripts begin with.
--   KEYS[1] the queue: zset, id -> score in Unix seconds
--   KEYS[2] its tasks: hash, id -> field
local queue, tasks = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000

-- Seventeen digits: what a double needs. Redis's own conversion loses some.
local function text(x)
  return string.format('%.17g', x)
end

-- A finite number, or nil.
local function finite(s)
  local x = s and tonumber(s)
  if x and x > -1e300 and x < 1e300 then return x end
end
