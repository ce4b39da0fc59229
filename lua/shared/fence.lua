-- DEFINES text, fenceLife, clock, nextFence
-- For the scripts of locks that need the time, or a fence. KEYS[3] is the last fence that was
-- reserved: Unix time in microseconds, of 15 or 16 digits, which a double holds exactly.

local function text(number) return string.format('%.0f', number) end

local fenceLife = '86400000' -- for how long a name's last fence is remembered, in ms: after a day the clock makes the next one higher

local time -- the server's, once it was asked

-- Returns the server's time, in ms of Unix time.
local function clock()
  time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Returns the next fence of the name, as text, or 0 if none is wanted: without KEYS[3]. It returns nil if that was not written by
-- this library. unused is how many of the last fences no caller has.
local function nextFence(unused)
  if not KEYS[3] then return 0 end
  local last = redis.call('GET', KEYS[3])
  if last and not (string.find(last, '^%d+$') and #last <= 16 and tonumber(last) <= 9e15) then return nil end
  time = time or redis.call('TIME')
  return text(math.max(tonumber(last or 0) - unused + 1, tonumber(time[1]) * 1000000 + tonumber(time[2])))
end
