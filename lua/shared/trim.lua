-- Prelude of the scripts that drop dead letters: those that bury, and trim.
-- No script has to check beforehand what this needs: where a command is denied, or a key has another type, nothing is
-- dropped, and the burial is done all the same.

-- Drops the oldest dead letters, n at most: those that are more than limit, 0 for no limit, or have been there for age seconds, 0 for
-- ever. One whose task is in the queue again only leaves the list, as in drop.lua, and does not count. Returns how many it has
-- counted, up to ten of their IDs, and whether there are more to be dropped.
local function dropOldest(n, limit, age)
  local over = limit > 0 and redis.call('ZCARD', KEYS[3]) - limit or 0
  local old = age > 0 and redis.call('ZCOUNT', KEYS[3], '-inf', text(now - age)) or 0
  local left, count, named = math.min(math.max(over, old), n), 0, {}
  if left > 0 then
    redis.call('ZCARD', KEYS[1]) -- check the types before the first write
    redis.call('HLEN', KEYS[2])
    redis.call('HLEN', KEYS[4])
    need('HDEL', KEYS[2])
    need('HDEL', KEYS[4])
  end
  for from = 1, left, 250 do
    local ids, dropped = redis.call('ZRANGE', KEYS[3], '0', string.format('%d', math.min(left - from, 249))), {}
    local queued = redis.call('ZMSCORE', KEYS[1], unpack(ids))
    redis.call('ZREM', KEYS[3], unpack(ids))
    for i, id in ipairs(ids) do
      if not queued[i] then dropped[#dropped + 1] = id end
    end
    for i = 1, math.min(10 - #named, #dropped) do named[#named + 1] = dropped[i] end
    if #dropped > 0 then
      redis.call('HDEL', KEYS[2], unpack(dropped))
      redis.call('HDEL', KEYS[4], unpack(dropped))
    end
    count = count + #dropped
  end
  tally('dropped', count)
  return count, named, math.max(over, old) > n
end

-- Drops what ARGV[at] and ARGV[at + 1] do not allow: how many dead letters may stay, and for how many seconds. Up to fifty more than
-- were buried, so that a limit that is new is reached. Returns how many were dropped and up to ten IDs, or nothing; then
-- whether there are more.
local function trim(buried, at)
  if tonumber(ARGV[at]) == 0 and tonumber(ARGV[at + 1]) == 0 then return {} end -- no bounds
  local done, count, named, more = pcall(dropOldest, buried + 50, tonumber(ARGV[at]), tonumber(ARGV[at + 1]))
  if not done or count == 0 then return {}, done and more end
  return { count, unpack(named) }, more
end
