-- Drops dead letters that are too many or too old, the oldest first, up to fifty. One whose task is in the
-- queue again only leaves the list, as in drop.lua, and does not count.
-- KEYS[3] the dead letters   KEYS[6] how many were dropped: hash, see stats.lua
-- ARGV[1] how many may stay, 0 for any number   ARGV[2] for how many seconds each may, 0 for ever
-- RETURNS { 1 if more are to be dropped, else 0, then the IDs of those that were dropped }
-- RETRY never: the next run drops what this one has left, and no caller waits for it.
local limit, age, dropped, ids = tonumber(ARGV[1]), tonumber(ARGV[2]), {}, {}
redis.call('ZCARD', KEYS[1]) -- check the types before the first write
redis.call('HLEN', KEYS[2])
redis.call('HLEN', KEYS[4])
local before = tonumber(redis.call('HGET', KEYS[6], 'own') or '0')
local over = limit > 0 and redis.call('ZCARD', KEYS[3]) - limit or 0

local function isDoomed(rank, died)
  if rank <= over then return true end
  return age > 0 and (finite(died) or (string.sub(died, 1, 1) == '-' and 0 or math.huge)) <= now - age
end

local found = redis.call('ZRANGE', KEYS[3], '0', '0', 'WITHSCORES')
if #found == 0 or not isDoomed(1, found[2]) then return { 0 } end
found = redis.call('ZRANGE', KEYS[3], '0', '50', 'WITHSCORES')
for i = 1, math.min(#found, 100), 2 do
  if not isDoomed((i + 1) / 2, found[i + 1]) then break end
  ids[#ids + 1] = found[i]
end
need('HDEL', KEYS[2])
need('HDEL', KEYS[4])
need('HSET', KEYS[6])
local queued = redis.call('ZMSCORE', KEYS[1], unpack(ids))
redis.call('ZREM', KEYS[3], unpack(ids)) -- first: after it a full server accepts the count
for i, id in ipairs(ids) do
  if not queued[i] then dropped[#dropped + 1] = id end
end
if #dropped > 0 then
  redis.call('HDEL', KEYS[2], unpack(dropped))
  redis.call('HDEL', KEYS[4], unpack(dropped))
  redis.call('HSET', KEYS[6], 'own', string.format('%.0f', before + #dropped))
end
local more = #ids == 50 and found[102] and isDoomed(51, found[102])
return { more and 1 or 0, unpack(dropped) }
