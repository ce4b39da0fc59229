-- DEFINES writeLimits, areSet
-- USES unpack, rights, prelude, limits
-- For the scripts that change a queue's pause or its limits. It reads them.
redis.call('ZCARD', KEYS[1]) -- what is of another type is no queue
need('SET', KEYS[8])
readLimits()
limits = limits or { ends = 0, running = 0, rate = 0, per = 0, burst = 0, group = 0, spent = 0 }

-- Reports whether limits have been set, or that there are to be none: by a burst without a rate.
local function areSet() return limits.running + limits.rate + limits.burst + limits.group > 0 end

-- Writes them, if there are any. What has a pause only, expires with it.
local function writeLimits()
  local isLimited, expires = areSet(), {}
  redis.call('DEL', KEYS[8]) -- after this write a full server accepts the next one
  if not isLimited and limits.ends <= us then return end
  if not isLimited and limits.ends < 9e15 then expires = { 'PX', string.format('%.0f', math.ceil((limits.ends - us) / 1000)) } end
  local group = limits.group > 0 and string.format(' %.0f', limits.group) or ''
  redis.call('SET', KEYS[8], string.format('%.0f %.0f %.0f %.0f %.0f', limits.ends, limits.running, limits.rate, limits.per, limits.burst) .. group
    .. string.format(' %.0f', limits.spent), unpack(expires))
end
