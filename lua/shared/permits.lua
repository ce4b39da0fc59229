-- DEFINES firstEnd, removePermit, passPermitOn
-- USES fence, lock_line
-- For the scripts that need to know when a permit becomes free, or that free one.

-- Returns when the first of the permits that are held ends; some day, for one without an end, which a foreign program has written.
local function firstEnd(now)
  local ends = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  return math.min(tonumber(ends) or 9e15, 9e15)
end

-- Removes a permit, and the key with the last one that is held. Returns whether it was held.
local function removePermit(now, token)
  local ends = tonumber(redis.call('ZSCORE', KEYS[1], token) or 0)
  if ends == 0 then return false end
  local last = redis.call('ZRANGE', KEYS[1], '-2', '-1', 'WITHSCORES')
  local others = tonumber(last[3] == token and last[2] or last[4] or 0) -- when the last of the others ends
  if others <= now then -- only '' is left, or what has ended
    redis.call('DEL', KEYS[1])
  else
    redis.call('ZREM', KEYS[1], token)
    if others < ends then redis.pcall('PEXPIRE', KEYS[1], text(others - now)) end
  end
  return ends > now
end

-- Keeps a permit that is free for the first in line. number is the score of '', nil if it is not known: then the permit is free
-- for all. Returns how many processes were woken.
local function passPermitOn(now, number)
  return wakeFirst(function(member, ms)
    if not number then return end
    local left = redis.call('PTTL', KEYS[1])
    redis.call('ZADD', KEYS[1], number, '', text(now + ms + 1), '>' .. member)
    redis.call('PEXPIRE', KEYS[1], text(math.max(left, ms + 1)))
  end)
end
