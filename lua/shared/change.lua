-- Prelude of the scripts that change a queue's pause or its limits, behind limits.lua.

local function whole(n) return string.format('%.0f', n) end

-- Writes what limits has, if it has anything.
local function writeLimits()
  redis.call('DEL', KEYS[7]) -- after this write a full server accepts the next one
  local fields = {}
  local function add(name, value) fields[#fields + 1], fields[#fields + 2] = name, value end
  if limits.running then add('running', whole(limits.running)) end
  if limits.rate then add('rate', whole(limits.rate) .. ' ' .. whole(limits.per) .. ' ' .. whole(limits.burst)) end
  if #fields > 0 then
    if limits.ends then add('until', whole(limits.ends)) end
    if limits.spent then add('spent', whole(limits.spent)) end
    redis.call('HSET', KEYS[7], unpack(fields))
  elseif limits.ends == 0 then
    redis.call('SET', KEYS[7], '1')
  elseif limits.ends then
    redis.call('SET', KEYS[7], '1', 'PX', whole(math.ceil((limits.ends - us) / 1000)))
  end
end

redis.call('ZCARD', KEYS[1]) -- a queue with several shards has a string there
need('SET', KEYS[7])
need('HSET', KEYS[7])
local wrong = readLimits()
if wrong then error(wrong) end
limits = limits or {}
