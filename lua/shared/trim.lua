-- DEFINES trim
-- USES unpack, rights, prelude, tally
-- For the scripts that drop dead letters: those that bury, and seen.
-- No script has to check beforehand what this needs: where a command is denied, or a key has another type, nothing is
-- dropped, and the script does the rest all the same.

-- Drops the oldest dead letters, n at most: those that are more than limit, 0 for any number, or have
-- been there for age seconds, 0 for ever. One whose task is in the queue again only leaves the list, as
-- in drop.lua, and does not count. Returns whether more are to be dropped.
local function dropOldest(n, limit, age)
  local over = limit > 0 and redis.call('ZCARD', KEYS[3]) - limit or 0
  local old = age > 0 and redis.call('ZCOUNT', KEYS[3], '-inf', text(now - age)) or 0
  local excess, count = math.max(over, old), 0
  if excess <= 0 then return false end
  redis.call('ZCARD', KEYS[1]) -- check the types before the first write
  redis.call('HLEN', KEYS[2])
  redis.call('HLEN', KEYS[4])
  need('HDEL', KEYS[2])
  need('HDEL', KEYS[4])
  local left = math.min(excess, n)
  for from = 1, left, 250 do
    local ids, dropped = redis.call('ZRANGE', KEYS[3], '0', string.format('%d', math.min(left - from, 249))), {}
    local queued = redis.call('ZMSCORE', KEYS[1], unpack(ids))
    redis.call('ZREM', KEYS[3], unpack(ids))
    for i, id in ipairs(ids) do
      if not queued[i] then dropped[#dropped + 1] = id end
    end
    if #dropped > 0 then
      redis.call('HDEL', KEYS[2], unpack(dropped))
      redis.call('HDEL', KEYS[4], unpack(dropped))
    end
    count = count + #dropped
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
