-- DEFINES join, leave, idle
-- USES prelude, queue_idle
-- For the scripts that give a client a place in line, or take it.

-- Gives a client a place, if it has none. It is the watchman if the head is due later, in off microseconds, and no other one is; its watch
-- takes so many ms. Returns 1 if it has a place, 3 if it had none before, and one more if it is the watchman; 0 if it is denied one.
local function join(client, off, ms)
  local score, place, wanted = redis.pcall('ZSCORE', KEYS[6], client), 1, nil
  if type(score) == 'table' then return 0 end
  score = tonumber(score or nil)
  if off > 0 and off <= 3600000000 then
    local other, ends = watchman()
    if not other or other == client or ends <= us then
      if other and other ~= client then redis.pcall('ZADD', KEYS[6], '0', other) end -- as in seeTo
      place = 2
      if not score or score >= 0 or score + 1e16 - us < ms * 600 then wanted = us + ms * 1000 - 1e16 end
    end
  elseif score and score < 0 then
    wanted = us
  end
  if not score then place, wanted = place + 2, wanted or us end
  if wanted and type(redis.pcall('ZADD', KEYS[6], text(wanted), client)) ~= 'number' then return 0 end
  local left, ttl = redis.pcall('PTTL', KEYS[6]), math.max(60000, 4 * ms)
  if type(left) == 'number' and left < ttl / 2 then redis.pcall('PEXPIRE', KEYS[6], text(ttl)) end
  return place
end

-- Takes a client out of the line. If it was the watchman, another one is.
local function leave(client, off)
  local score = redis.pcall('ZSCORE', KEYS[6], client)
  if type(score) ~= 'string' then return end
  redis.pcall('ZREM', KEYS[6], client)
  if tonumber(score) < 0 and off > 0 then seeTo(off, 1) end
end

-- Returns how many clients are in line.
local function idle()
  local n = redis.pcall('ZCARD', KEYS[6])
  return type(n) == 'number' and n or 0
end
