-- Releases a permit that the token holds, and publishes that it is free.
-- KEYS[1] the permits
-- ARGV[1] token   ARGV[2] wake channel
-- RETURNS 0 the token does not hold one
--         n > 0 released, and n - 1 subscribers were notified
-- RETRY idempotent: a token is used for one acquisition only, so a second run releases nothing.
local now, ends = clock(), redis.pcall('ZSCORE', KEYS[1], ARGV[1])
if type(ends) ~= 'string' then return denied(ends) or 0 end
local last = redis.call('ZRANGE', KEYS[1], '-2', '-1', 'WITHSCORES')
local others = tonumber(last[3] == ARGV[1] and last[2] or last[4] or 0) -- when the last of the others ends
if others <= now then -- only '' is left, or what has ended
  redis.call('DEL', KEYS[1])
else
  redis.call('ZREM', KEYS[1], ARGV[1])
  if others < tonumber(ends) then redis.pcall('PEXPIRE', KEYS[1], text(others - now)) end
end
return tonumber(ends) > now and publish(ARGV[2], '') + 1 or 0
