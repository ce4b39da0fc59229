-- Prelude of the scripts that heed a queue's pause and its limits. KEYS[7] has them, and there is none where there is neither: a string that
-- lives as long as a pause or, once there are limits, a hash: 'until', when a pause ends, 0 for never; 'running'; 'rate', 'per' and 'burst';
-- 'spent', until when tokens of the rate are spent, by the generic cell rate algorithm (ITU-T I.371). Times are in microseconds.
local limits

-- Reads them. Others that are not a hash are a pause, too.
local function readLimits()
  local left = redis.call('PTTL', KEYS[7])
  if left == -2 then return end
  limits = { ends = left < 0 and 0 or us + (left + 1) * 1000 } -- the key is gone when that time has passed
  local has = redis.pcall('HMGET', KEYS[7], 'until', 'running', 'rate', 'per', 'burst', 'spent')
  if has.err and not string.find(has.err, 'WRONGTYPE', 1, true) then error(has) end
  if not has.err then
    limits = { ends = finite(has[1]), running = finite(has[2]), rate = finite(has[3]), per = finite(has[4]) or 1000000, burst = finite(has[5]) or 1, spent = finite(has[6]) or 0 }
  end
  if limits.ends and limits.ends ~= 0 and limits.ends <= us then limits.ends = nil end
  if limits.rate then limits.every = limits.per / limits.rate end
end

-- Returns how many of n tasks may be handed out, to be leased unless pops is true. The leases of those with ids end before, if they have any.
local function allowed(n, ids, pops)
  if not limits then return n end
  if limits.running then
    limits.places = limits.running - redis.call('ZCOUNT', KEYS[5], '(' .. text(now), '+inf')
    local scores = ids and #ids > 0 and redis.call('ZMSCORE', KEYS[5], unpack(ids)) or {}
    for i = 1, #scores do
      if scores[i] and tonumber(scores[i]) > now then limits.places = limits.places + 1 end
    end
  end
  if limits.rate then limits.tokens = math.floor(limits.burst - math.max(limits.spent - us, 0) / limits.every) end
  if limits.ends then return 0 end
  local places = limits.places or n
  if pops and places > 0 then places = n end
  return math.max(math.min(n, places, limits.tokens or n), 0)
end

-- Notes that tasks were handed out, and how many of them are leased. After another write a full server accepts it.
local function spend(n, leases)
  if not limits then return end
  if limits.places then limits.places = limits.places - leases end
  if not limits.rate or n == 0 then return end
  limits.spent, limits.tokens = math.max(limits.spent, us) + n * limits.every, limits.tokens - n
  redis.call('HSET', KEYS[7], 'spent', string.format('%.2f', limits.spent))
end

-- Returns in how many microseconds the next task may be handed out, 0 if one may be now; and whether that is when a lease ends, or before:
-- then what ends it tells of that.
local function heldBack()
  if not limits then return 0, false end
  local off, isFull = limits.ends and (limits.ends == 0 and 3600000001 or limits.ends - us) or 0, (limits.places or 1) < 1
  if limits.tokens and limits.tokens < 1 then off = math.max(off, math.ceil(limits.spent - us - (limits.burst - 1) * limits.every), 1) end
  if isFull then
    local which = string.format('%.0f', 0 - limits.places)
    local ends = redis.call('ZRANGEBYSCORE', KEYS[5], '(' .. text(now), '+inf', 'WITHSCORES', 'LIMIT', which, '1')[2]
    off = math.max(off, ends and math.ceil((tonumber(ends) - now) * 1000000) or 3600000001, 1)
  end
  return math.min(off, 3600000001), isFull
end
