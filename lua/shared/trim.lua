-- DEFINES trim
-- USES prelude, tally, letters
-- For the scripts that drop dead letters: those that bury, and seen.
-- No script has to check beforehand what this needs: where a command is denied, or a key has another type, nothing is
-- dropped, and the script does the rest all the same.

-- Drops the oldest dead letters, n at most: those that are more than limit, 0 for any number, or have
-- been there for age seconds, 0 for ever. Returns whether more are to be dropped.
local function dropOldest(n, limit, age)
  local over = limit > 0 and redis.call('ZCARD', KEYS[3]) - limit or 0
  local old = age > 0 and redis.call('ZCOUNT', KEYS[3], '-inf', text(now - age)) or 0
  local excess, count = math.max(over, old), 0
  if excess <= 0 then return false end
  checkLetters()
  local left = math.min(excess, n)
  for from = 1, left, 250 do
    count = count + dropLetters(redis.call('ZRANGE', KEYS[3], '0', string.format('%d', math.min(left - from, 249))))
  end
  tally('dropped', count)
  return excess > n
end

-- Drops what the bounds of a queue do not allow: as many as were buried, so that the limit holds
-- whatever is buried at a time, and up to a hundred more, so that a new limit is reached. It drops no
-- more at once, because the server is held up while it frees payloads: for 4 ms by a hundred of a
-- megabyte, for 25 to 57 ms by 250. Returns whether more are to be dropped.
local function trim(buried, limit, age)
  local done, more = pcall(dropOldest, buried + 100, tonumber(limit), tonumber(age))
  return done and more
end
