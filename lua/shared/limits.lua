-- DEFINES limits, readLimits
-- USES unpack, prelude
-- For the scripts that heed a queue's pause and its limits. KEYS[8] has them, and is missing where there is neither:
-- '<until> <running> <rate> <per> <burst> <spent>', or with ' <per group>' before the last one, each 0 for none. A burst without a rate: none is wanted. until is when a pause ends, and spent until when tokens of the rate are,
-- by the generic cell rate algorithm (ITU-T I.371); times are in microseconds, and 9e15 is never. Any other text is a pause.
local limits

-- Reads them, if there are any, and makes their functions.
local function readLimits()
  local has = redis.call('GET', KEYS[8])
  if not has then return end
  local kept, ends, running, rate, per, burst, group, spent = string.match(has, '^((%d+) (%d+) (%d+) (%d+) (%d+) ?(%d*) )(%d+)$')
  if tonumber(rate or 0) > 0 and (tonumber(per) == 0 or tonumber(burst) == 0) then ends, running, rate = nil, nil, nil end
  limits = { ends = tonumber(ends or 9e15), running = tonumber(running or 0), rate = tonumber(rate or 0), per = tonumber(per or 0), burst = tonumber(burst or 0), group = tonumber(group or 0) or 0, spent = tonumber(spent or 0) }
  if limits.rate > 0 and limits.spent > us + limits.burst * limits.per / limits.rate + 1 then limits.spent = us + (limits.burst - 1) * limits.per / limits.rate end -- the clock was ahead

  -- Returns how many of n tasks may be handed out, to be leased unless pops is true. The leases of ids, if there are any, end before.
  function limits.allowed(n, ids, pops)
    local most = n
    if limits.running > 0 then
      limits.places = limits.running - redis.call('ZCOUNT', KEYS[5], '(' .. text(now), '+inf')
      local ending = ids and ids[1] and redis.call('ZMSCORE', KEYS[5], unpack(ids)) or {} -- off the list if the clock was ahead: they take no place
      for i = 1, #ending do
        if ending[i] and tonumber(ending[i]) > now then limits.places = limits.places + 1 end
      end
      if limits.places < 1 or not pops then most = math.min(n, limits.places) end
    end
    if limits.rate > 0 then
      limits.tokens = math.floor(limits.burst - math.max(limits.spent - us, 0) * limits.rate / limits.per)
      most = math.min(most, limits.tokens)
    end
    return limits.ends > us and 0 or math.max(most, 0)
  end

  -- Notes that tasks were handed out, and how many of them are leased. After another write a full server accepts it.
  function limits.spend(n, leases)
    if limits.places then limits.places = limits.places - leases end
    if limits.rate == 0 or n == 0 then return end
    limits.spent, limits.tokens = math.ceil(math.max(limits.spent, us) + n * limits.per / limits.rate), limits.tokens - n
    redis.call('SET', KEYS[8], kept .. string.format('%.0f', limits.spent))
  end

  -- Returns in how many microseconds the next task may be handed out, 0 if one may be now; and whether that is when a lease ends, or
  -- before: then what ends it tells of that. After allowed.
  function limits.heldBack()
    local off, isFull = limits.ends - us, limits.places and limits.places < 1
    if limits.tokens and limits.tokens < 1 then off = math.max(off, math.ceil(limits.spent - us - (limits.burst - 1) * limits.per / limits.rate), 1) end
    if isFull then
      local ends = redis.call('ZRANGEBYSCORE', KEYS[5], '(' .. text(now), '+inf', 'WITHSCORES', 'LIMIT', string.format('%.0f', 0 - limits.places), '1')[2]
      off = math.max(off, ends and math.ceil((tonumber(ends) - now) * 1000000) or 9e15, 1)
    end
    return math.min(math.max(off, 0), 3600000001), isFull
  end
end
