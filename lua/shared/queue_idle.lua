-- DEFINES watchman, seeTo
-- USES prelude
-- For the scripts that tell idle clients of the queue's head. KEYS[6] is their line, a sorted set: of
-- each client that has room for tasks '<client>', or '*<client>' if it listens by SSUBSCRIBE, with the
-- server's time in microseconds of Unix time at which it joined. The watchman among them sees to a
-- head that is due later: its score is the end of its watch, less 1e16.
-- The line is a hint: whatever fails on it, clients look.

-- Tells a client in how many microseconds the head is due, and how many tasks are. Returns how many clients were told, nil if that is
-- denied.
local function tell(client, off, tasks)
  local channel, sharded = string.sub(KEYS[6], 1, -5) .. 'wake:' .. string.match(client, '%w*$'), string.byte(client) == 42
  local message = string.format('%.0f %.0f', off, tasks)
  local told = sharded and redis.pcall('SPUBLISH', channel, message) or not sharded and redis.pcall('PUBLISH', channel, message)
  return type(told) == 'number' and told or nil
end

-- Tells the last in line, whose connection most likely lives, of a head. If it is due, the client leaves the line, and else
-- it is the watchman. Returns whether a client was told.
local function tellLast(off, tasks)
  for _ = 1, 16 do
    local last = redis.pcall('ZRANGE', KEYS[6], '-1', '-1')[1]
    local told = last and tell(last, off, tasks)
    if not told then return false end -- where it is denied, those in line keep their places
    if told > 0 and off > 0 then redis.pcall('ZADD', KEYS[6], text(us + 2000000 - 1e16), last) else redis.pcall('ZREM', KEYS[6], last) end
    if told > 0 then return true end
  end
end

-- Returns the watchman, and the end of its watch, which lasts two seconds: else the clock was ahead.
local function watchman()
  local first = redis.pcall('ZRANGE', KEYS[6], '0', '0', 'WITHSCORES')
  if first[2] and tonumber(first[2]) < 0 then return first[1], math.min(tonumber(first[2]) + 1e16, us + 2000000) end
end

-- Has idle clients see to the head, which is due in so many microseconds: four at most if so many tasks are due, else the watchman.
local function seeTo(off, tasks)
  if off <= 0 then
    for _ = 1, math.min(tasks, 4) do
      if not tellLast(0, tasks) then return end
    end
  elseif off <= 3600000000 then
    local client, ends = watchman()
    if client and ends > us then
      if tell(client, off, 1) ~= 0 then return end
      redis.pcall('ZREM', KEYS[6], client)
    elseif client then
      redis.pcall('ZADD', KEYS[6], '0', client) -- its watch is over, and it is like the others, and behind them
    end
    tellLast(off, 1)
  end
end
