-- Removes dead letters for good. A task that is in the queue again is left alone: its ID only leaves the
-- list of dead letters, as in revive.lua.
-- KEYS[3] the dead letters
-- ARGV the ids
-- RETURNS the number of letters removed
-- USES unpack, rights
-- RETRY never: a task may have died again between two runs.
local dropped = {}
redis.call('HLEN', KEYS[2]) -- check the types before the first write
redis.call('HLEN', KEYS[4])
need('HDEL', KEYS[2])
need('HDEL', KEYS[4])
local queued = redis.call('ZMSCORE', KEYS[1], unpack(ARGV))
for i, id in ipairs(ARGV) do
  if redis.call('ZREM', KEYS[3], id) == 1 and not queued[i] then dropped[#dropped + 1] = id end
end
if #dropped > 0 then
  redis.call('HDEL', KEYS[2], unpack(dropped))
  redis.call('HDEL', KEYS[4], unpack(dropped))
end
return #dropped
