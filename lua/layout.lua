-- Reads how many shards a queue has. Where that is not recorded, it records the number that is wanted, if
-- that is not 1 and the queue has no tasks in the key of its only shard: a string has that key then.
-- KEYS[1] the number of shards: hash   KEYS[2] the queue's main key   KEYS[3] the dead letters of its only shard
-- ARGV[1] the number of shards that is wanted, or 0 to read only   ARGV[2] the string
-- RETURNS the number, or -1 if the queue has none yet
-- RETRY idempotent: a second run finds what the first has written.
local shards = redis.call('HGET', KEYS[1], 'shards')
if shards then return tonumber(shards) end
if redis.call('ZCARD', KEYS[2]) + redis.call('ZCARD', KEYS[3]) > 0 then return 1 end
if ARGV[1] == '0' then return -1 end
redis.call('HSET', KEYS[1], 'shards', ARGV[1])
redis.call('SET', KEYS[2], ARGV[2])
return tonumber(ARGV[1])
