-- Takes a lock together with a block of fences, or says how long its holder may
-- still keep it.
-- KEYS[1] the lock   KEYS[2] the last fence reserved
-- ARGV[1] token   ARGV[2] TTL in ms   ARGV[3] fences to reserve   ARGV[4] TTL of KEYS[2] in ms
-- RETURNS the first fence of the block, as text: the token holds the lock now, for the whole TTL
--         n > 0 somebody else does, for n ms at most
--         -1 KEYS[2] is not ours; nothing changed
-- May run twice: the token that holds the lock finds itself there, and its block.
local lock, counter, token, ttl, block = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])

local holder, left = redis.call('GET', lock), redis.call('PTTL', lock)
if holder and holder ~= token then
  if left == -1 then -- as in acquire.lua
    redis.call('PEXPIRE', lock, ttl)
    left = tonumber(ttl)
  end
  return math.max(left, 1)
end

-- Fifteen or sixteen digits are microseconds, and exact in a double.
local text = redis.call('GET', counter)
if text and not (string.find(text, '^%d+$') and #text <= 16 and tonumber(text) <= 9e15) then
  return -1
end
if holder and left < tonumber(ttl) then redis.call('PEXPIRE', lock, ttl) end
local last, first = tonumber(text or 0), nil
if holder and text then
  first = last - block + 1 -- since this token took the lock, nobody has reserved another
else
  local time = redis.call('TIME')
  first = math.max(last + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
  -- The counter first: where this is refused, the lock is not taken either.
  redis.call('SET', counter, string.format('%.0f', first + block - 1), 'PX', ARGV[4])
end
if not holder then
  redis.call('SET', lock, token, 'PX', ttl)
end
return string.format('%.0f', first)
