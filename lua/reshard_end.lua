-- Ends the move of a queue to another number of shards: all tasks have been moved. The only shard of a
-- queue then gets the keys that such a queue has; until now it had others, so that a client which has
-- slept through all moves would not use these beside the shards that were left.
-- KEYS[1] the queue's layout: hash   KEYS[2] to KEYS[7] its main key and its companions :tasks, :dead, :state, :leased
-- and :paused   KEYS[8] the move record of the main key: hash, see reshard_take.lua   KEYS[9] :dropped of the main key
-- KEYS[10] to KEYS[15] the keys of its only shard, if it has one; KEYS[16] then :dropped of that shard
-- ARGV[1] the epoch of the layout to which it was moved   ARGV[2] the tombstone   ARGV[3] wake channel
-- RETURNS 1, or 0 if that has ended already
-- RETRY idempotent: there is nothing to end for a second run.
local from = redis.call('HGET', KEYS[1], 'from')
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] or not from then return 0 end
redis.call('HDEL', KEYS[1], 'from', 'from_epoch')
-- What was carried over is forgotten where it stood. Later that could be what a queue has which uses the main key again.
if from == '1' then redis.call('DEL', KEYS[7], KEYS[9]) end
if redis.call('HGET', KEYS[1], 'shards') ~= '1' then return 1 end

local epoch = string.format('%.0f', tonumber(ARGV[1]) + 1)
redis.call('HSET', KEYS[1], 'epoch', epoch)
-- The main key is in use again. What is late of a move out of it must not take anything: the dead
-- letters have the key that they had then.
redis.call('HSET', KEYS[8], 'epoch', epoch)
redis.call('DEL', KEYS[2], KEYS[7], KEYS[9]) -- a pause that came late, when this key had been left, is over; the count was carried
if redis.call('EXISTS', KEYS[10]) == 1 then redis.call('RENAME', KEYS[10], KEYS[2]) end
if redis.call('EXISTS', KEYS[11]) == 1 then redis.call('RENAME', KEYS[11], KEYS[3]) end
if redis.call('EXISTS', KEYS[12]) == 1 then redis.call('RENAME', KEYS[12], KEYS[4]) end
if redis.call('EXISTS', KEYS[13]) == 1 then redis.call('RENAME', KEYS[13], KEYS[5]) end
if redis.call('EXISTS', KEYS[14]) == 1 then redis.call('RENAME', KEYS[14], KEYS[6]) end
if redis.call('EXISTS', KEYS[15]) == 1 then redis.call('RENAME', KEYS[15], KEYS[7]) end
if redis.call('EXISTS', KEYS[16]) == 1 then redis.call('RENAME', KEYS[16], KEYS[9]) end
redis.call('SET', KEYS[10], ARGV[2])
publish(ARGV[3], '1 1 0') -- those who wait look, and learn of it
return 1
