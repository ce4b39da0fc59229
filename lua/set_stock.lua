-- Says how many units of an item there are in all, or ends its sale: then nothing is left of it, and what tasks hold is counted on.
-- KEYS[1] the queue   KEYS[12] see stock.lua
-- ARGV[1] the item   ARGV[2] the total, '' to end its sale
-- RETURNS 1
-- RETRY never: between two runs others may have set it, and a late one would undo that.
redis.call('ZCARD', KEYS[1]) -- what is of another type is no queue
if ARGV[2] ~= '' then
  redis.call('HSET', KEYS[12], 'total:' .. ARGV[1], ARGV[2])
else
  redis.call('HDEL', KEYS[12], 'total:' .. ARGV[1], 'sold:' .. ARGV[1])
  if redis.call('HGET', KEYS[12], 'held:' .. ARGV[1]) == '0' then redis.call('HDEL', KEYS[12], 'held:' .. ARGV[1]) end
end
return 1
