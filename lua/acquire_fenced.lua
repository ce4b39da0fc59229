-- Acquires a lock together with a block of fences, or returns how much longer another
-- token may hold it.
-- KEYS[1] the lock   KEYS[2] the last fence reserved
-- ARGV[1] token   ARGV[2] TTL in ms   ARGV[3] fences to reserve   ARGV[4] TTL of KEYS[2] in ms
-- ARGV[5...] tokens of the same call's last requests, which had no reply
-- RETURNS the first fence of the block, as text: the token holds the lock now, for the whole TTL
--         n > 0 another token holds it, for n ms at most
--         -1 KEYS[2] was not written by this library   -1-n it is held with n permits; of these two, nothing changed
-- RETRY never: the next request has another token and block, and replaces this one.
local token, ttl, block = ARGV[1], ARGV[2], tonumber(ARGV[3])

local holder, left = redis.pcall('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
if type(holder) == 'table' then return permitsInstead(holder) end
local replaced = false
for i = 5, #ARGV do replaced = replaced or holder == ARGV[i] end
if holder and not replaced then
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
local last, time = tonumber(text or 0), redis.call('TIME')
if replaced then last = last - block end -- no caller has them; only the lock's holder reserves fences
local first = math.max(last + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
-- The counter first: if the server rejects this write, the lock is not acquired either.
redis.call('SET', KEYS[2], string.format('%.0f', first + block - 1), 'PX', ARGV[4])
redis.call('SET', KEYS[1], token, 'PX', ttl)
return string.format('%.0f', first)
