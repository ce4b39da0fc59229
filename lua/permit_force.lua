-- Releases all permits of a name, whatever their tokens, and publishes that they are free.
-- KEYS[1] the permits
-- ARGV[1] wake channel
-- RETURNS the tokens that held them   an empty list: none was held
-- RETRY never: if the script runs twice, the second run may release the permits of the next holders.
local tokens = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(now), '+inf')
if not redis.call('ZSCORE', KEYS[1], '') then
  return {}
end
redis.call('DEL', KEYS[1])
publish(ARGV[1], '')
return tokens
