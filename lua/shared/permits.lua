-- Prelude of the scripts that need to know when a permit becomes free, behind fence.lua.

-- Returns when the first of the permits that are held ends.
local function firstEnd(now)
  return tonumber(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
end
