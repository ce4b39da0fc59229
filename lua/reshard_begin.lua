-- Begins to move a queue to another number of shards, or says to which layout it is being moved.
-- KEYS[1] the queue's layout: hash   KEYS[2] its main key, which its only shard uses if it has one
-- ARGV[1] the number of shards that is wanted   ARGV[2] the epoch of the layout that is to be left
-- RETURNS { shards, epoch, shards before, epoch before }; the last two are 0 unless the queue is being moved
-- RETRY idempotent: a second run finds what the first has written.
local function read(field) return tonumber(redis.call('HGET', KEYS[1], field) or '0') end
local wanted, shards, epoch, from, fromEpoch = tonumber(ARGV[1]), read('shards'), read('epoch'), read('from'), read('from_epoch')
if shards == 0 then -- the queue has no record: it has one shard
  redis.call('ZCARD', KEYS[2])
  shards = 1
end
if from > 0 or shards == wanted or tostring(epoch) ~= ARGV[2] then return { shards, epoch, from, fromEpoch } end
redis.call('HSET', KEYS[1], 'shards', ARGV[1], 'epoch', epoch + 1, 'from', shards, 'from_epoch', epoch)
return { wanted, epoch + 1, shards, epoch }
