-- Adopts a lock that the token holds: gives it a TTL of at least ARGV[2] from now, and takes a fence for its new holder.
-- KEYS[1] the lock   KEYS[2] the last fence reserved
-- ARGV[1] token   ARGV[2] TTL in ms   ARGV[3] TTL of KEYS[2] in ms
-- RETURNS the fence, as text   0 the token does not hold the lock
--         -1 KEYS[2] was not written by this library; nothing changed
-- RETRY idempotent: it never makes a TTL shorter, and a second run takes a higher fence, which is as good.
local holder = redis.pcall('GET', KEYS[1])
if holder ~= ARGV[1] then
  return denied(holder) or 0
end
local text = redis.call('GET', KEYS[2])
if text and not (string.find(text, '^%d+$') and #text <= 16 and tonumber(text) <= 9e15) then -- as in acquire_fenced.lua
  return -1
end
local time = redis.call('TIME')
local fence = math.max(tonumber(text or 0) + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
local left = redis.call('PTTL', KEYS[1])
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(left, tonumber(ARGV[2])))) -- first: after this a full server accepts the next write
local saved = redis.pcall('SET', KEYS[2], string.format('%.0f', fence), 'PX', ARGV[3])
if saved.err then
  if left >= 0 then redis.call('PEXPIRE', KEYS[1], left) end
  return saved
end
return string.format('%.0f', fence)
