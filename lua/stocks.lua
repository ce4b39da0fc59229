-- Returns how many units of an item there are, or of all items.
-- KEYS[1] the queue   KEYS[12] see stock.lua
-- ARGV[1] the item, if it is one
-- RETURNS of an item what KEYS[12] has in its three fields, '' where there is none; else all of KEYS[12]: fields and values
-- RETRY readOnly: changes nothing.
redis.call('ZCARD', KEYS[1]) -- what is of another type is no queue
if not ARGV[1] then return redis.call('HGETALL', KEYS[12]) end
local counts = redis.call('HMGET', KEYS[12], 'total:' .. ARGV[1], 'held:' .. ARGV[1], 'sold:' .. ARGV[1])
for i = 1, 3 do counts[i] = counts[i] or '' end
return counts
