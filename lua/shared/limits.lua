-- Prelude of the scripts that heed a queue's pause and its limits. KEYS[7] has them, and there is none where there is neither: a string that
-- lives as long as a pause or, once there are limits, a hash: 'until', when a pause ends, 0 for never; 'running'; 'rate', which is
-- '<rate> <per> <burst>'; 'spent', until when tokens of the rate are spent, by the generic cell rate algorithm (ITU-T I.371). Times are in
-- microseconds.
local limits, allowed, spend, heldBack

-- Reads them, and makes the functions, which are nil as limits is where there are none. What is not a hash is a pause. Returns an error, if there is one.
local function readLimits()
  local left = redis.pcall('PTTL', KEYS[7])
  if left == -2 then return end
  if type(left) ~= 'number' then return left end
  limits = { ends = left < 0 and 0 or us + (left + 1) * 1000 } -- the key is gone when that time has passed
  local has = redis.pcall('HMGET', KEYS[7], 'running', 'until', 'rate', 'spent')
  if not has.err then
    limits = { running = finite(has[1]), ends = finite(has[2]) }
    local rate, per, burst = string.match(has[3] or '', '^([1-9]%d*) ([1-9]%d*) ([1-9]%d*)$')
    if rate then limits.rate, limits.per, limits.burst, limits.spent = tonumber(rate), tonumber(per), tonumber(burst), finite(has[4]) or 0 end
  elseif not string.find(has.err, 'WRONGTYPE', 1, true) then
    return has
  end
  if limits.ends and limits.ends ~= 0 and limits.ends <= us then limits.ends = nil end

  -- Returns how many of n tasks may be handed out, to be leased unless pops is true. So many leases end before.
  function allowed(n, ending, pops)
    local most = n
    if limits.running then
      limits.places = limits.running - redis.call('ZCOUNT', KEYS[5], '(' .. text(now), '+inf') + ending
      if limits.places < 1 or not pops then most = math.min(n, limits.places) end
    end
    if limits.rate then
      limits.tokens = math.floor(limits.burst - math.max(limits.spent - us, 0) * limits.rate / limits.per)
      most = math.min(most, limits.tokens)
    end
    return limits.ends and 0 or math.max(most, 0)
  end

  -- Notes that tasks were handed out, and how many of them are leased. After another write a full server accepts it.
  function spend(n, leases)
    if limits.running then limits.places = limits.places - leases end
    if not limits.rate or n == 0 then return end
    limits.spent, limits.tokens = math.ceil(math.max(limits.spent, us) + n * limits.per / limits.rate), limits.tokens - n
    redis.call('HSET', KEYS[7], 'spent', string.format('%.0f', limits.spent))
  end

  -- Returns in how many microseconds the next task may be handed out, 0 if one may be now; and whether that is when a lease ends, or
  -- before: then what ends it tells of that. After allowed.
  function heldBack()
    local off, isFull = limits.ends and (limits.ends == 0 and 3600000001 or limits.ends - us) or 0, limits.running and limits.places < 1
    if limits.rate and limits.tokens < 1 then off = math.max(off, math.ceil(limits.spent - us - (limits.burst - 1) * limits.per / limits.rate), 1) end
    if isFull then
      local first = string.format('%.0f', 0 - limits.places)
      local ends = redis.call('ZRANGEBYSCORE', KEYS[5], '(' .. text(now), '+inf', 'WITHSCORES', 'LIMIT', first, '1')[2]
      off = math.max(off, ends and math.ceil((tonumber(ends) - now) * 1000000) or 3600000001, 1)
    end
    return math.min(off, 3600000001), isFull
  end
end
