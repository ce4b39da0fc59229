-- Reads how many shards a queue has. Where that is not recorded, it records the number that is wanted, if
-- that is not 1 and the queue has no tasks in the key of its only shard; that key is closed then.
-- KEYS[1] the queue's layout: hash   KEYS[2] its main key   KEYS[3] the dead letters of its only shard
-- ARGV[1] the number of shards that is wanted, or 0 to read only   ARGV[2] the tombstone
-- RETURNS { shards, epoch, shards before, epoch before }; the last two are 0 unless the queue is being moved
-- RETRY idempotent: a second run finds what the first has written.
local shards, epoch = redis.call('HGET', KEYS[1], 'shards'), redis.call('HGET', KEYS[1], 'epoch')
if shards then
  local from = redis.call('HMGET', KEYS[1], 'from', 'from_epoch')
  return { tonumber(shards), tonumber(epoch), tonumber(from[1] or '0'), tonumber(from[2] or '0') }
end
if ARGV[1] == '0' or ARGV[1] == '1' then return { 1, 0, 0, 0 } end
if redis.call('ZCARD', KEYS[2]) + redis.call('ZCARD', KEYS[3]) > 0 then return { 1, 0, 0, 0 } end
redis.call('HSET', KEYS[1], 'shards', ARGV[1], 'epoch', 1)
redis.call('SET', KEYS[2], ARGV[2])
return { tonumber(ARGV[1]), 1, 0, 0 }
