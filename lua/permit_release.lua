-- Releases a permit that the token holds, and publishes that it is free.
-- KEYS[1] the permits
-- ARGV[1] token   ARGV[2] wake channel
-- RETURNS 0 the token does not hold one
--         n > 0 released, and n - 1 subscribers were notified
-- RETRY idempotent: a token is used for one acquisition only, so a second run releases nothing.
local ends = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not ends then
  return 0
end
if redis.call('ZCARD', KEYS[1]) == 2 then -- it, and ''
  redis.call('DEL', KEYS[1])
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
if tonumber(ends) <= now then
  return 0
end
return publish(ARGV[2], '') + 1
