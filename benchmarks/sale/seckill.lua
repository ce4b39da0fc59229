-- Takes a unit for a buyer.
-- KEYS[1] the stock   KEYS[2] the buyers   ARGV[1] the buyer
-- RETURNS 0 taken   1 sold out   2 has one
if redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 then return 2 end
if tonumber(redis.call('GET', KEYS[1]) or '0') <= 0 then return 1 end
redis.call('DECR', KEYS[1])
redis.call('SADD', KEYS[2], ARGV[1])
return 0
