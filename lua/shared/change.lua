-- Prelude of the scripts that change a queue's pause or its limits, behind limits.lua.

-- Writes what limits has, if it has anything.
local function writeLimits()
  local fields = {}
  local function add(name, value)
    if value then fields[#fields + 1], fields[#fields + 2] = name, string.format('%.2f', value) end
  end
  redis.call('DEL', KEYS[7]) -- after this write a full server accepts the next one
  if not limits.running and not limits.rate then
    if limits.ends == 0 then redis.call('SET', KEYS[7], '1') elseif limits.ends then redis.call('SET', KEYS[7], '1', 'PX', string.format('%.0f', math.ceil((limits.ends - us) / 1000))) end
    return
  end
  add('until', limits.ends)
  add('running', limits.running)
  if limits.rate then
    add('rate', limits.rate)
    add('per', limits.per)
    add('burst', limits.burst)
    add('spent', limits.spent)
  end
  redis.call('HSET', KEYS[7], unpack(fields))
end

redis.call('ZCARD', KEYS[1]) -- a queue with several shards has a string there
need('SET', KEYS[7])
need('HSET', KEYS[7])
readLimits()
limits = limits or {}
