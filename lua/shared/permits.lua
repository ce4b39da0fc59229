-- Prelude of the scripts that need to know when a permit becomes free, behind fence.lua.

-- Returns when the first of the permits that are held ends; some day, for one without an end, which a foreign program has written.
local function firstEnd(now)
  local ends = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  return math.min(tonumber(ends) or 9e15, 9e15)
end
