-- Prelude of the scripts of permits. KEYS[1] is a sorted set: of each permit that is held the token, with the time at which it
-- ends, in ms of Unix time; and '' with -n, if there are n permits. The key lives as long as its last permit. A
-- permit that has ended is not held, whether it was removed or not.

local function text(number) return string.format('%.0f', number) end

local time -- the server's, once it was asked

-- Returns the server's time, in ms of Unix time.
local function clock()
  time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Returns the next fence of the name, or nil if KEYS[2] was not written by this library. The clock was read before.
local function nextFence()
  local last = redis.call('GET', KEYS[2])
  if last and not (string.find(last, '^%d+$') and #last <= 16 and tonumber(last) <= 9e15) then return nil end
  return text(math.max(tonumber(last or 0) + 1, tonumber(time[1]) * 1000000 + tonumber(time[2])))
end
