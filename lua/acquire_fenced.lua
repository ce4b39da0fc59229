-- Acquires a lock together with a block of fences, or returns how much longer another
-- token may hold it.
-- KEYS[1] the lock   KEYS[2] the last fence reserved
-- ARGV[1] token   ARGV[2] TTL in ms   ARGV[3] fences to reserve   ARGV[4] TTL of KEYS[2] in ms
-- RETURNS the first fence of the block, as text: the token holds the lock now, for the whole TTL
--         n > 0 another token holds it, for n ms at most
--         -1 KEYS[2] was not written by this library; nothing changed
-- RETRY idempotent: the second run finds that its own token holds the lock, and returns
-- the same block.
local token, ttl, block = ARGV[1], ARGV[2], tonumber(ARGV[3])

local holder, left = redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
if holder and holder ~= token then
  if left == -1 then -- as in acquire.lua
    redis.call('PEXPIRE', KEYS[1], ttl)
    left = tonumber(ttl)
  end
  return math.max(left, 1)
end

-- A counter is Unix time in microseconds: 15 or 16 digits, which a double holds exactly.
local text = redis.call('GET', KEYS[2])
if text and not (string.find(text, '^%d+$') and #text <= 16 and tonumber(text) <= 9e15) then
  return -1
end
if holder then redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(left, tonumber(ttl)))) end -- as in acquire.lua
local last, first = tonumber(text or 0), nil
if holder and text then
  first = last - block + 1 -- only the lock's holder reserves fences, so the last block is its own
else
  local time = redis.call('TIME')
  first = math.max(last + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
  -- The counter first: if the server rejects this write, the lock is not acquired either.
  redis.call('SET', KEYS[2], string.format('%.0f', first + block - 1), 'PX', ARGV[4])
end
if not holder then
  redis.call('SET', KEYS[1], token, 'PX', ttl)
end
return string.format('%.0f', first)
