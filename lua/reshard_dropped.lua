-- Writes beside a shard of the new layout how many dead letters the layout that is left has dropped, or
-- removes the count of a shard that was left. A mover that comes late may have found some of the counts gone.
-- KEYS[1] the shard's main key   KEYS[7] its count: hash, see stats.lua
-- ARGV[1] how many, or '' to remove
-- RETURNS 1
-- RETRY idempotent: the number does not change once all shards are closed that are left, and never falls.
if ARGV[1] == '' then
  redis.call('DEL', KEYS[7])
else
  redis.call('ZCARD', KEYS[1]) -- fails if this shard was left meanwhile
  if tonumber(redis.call('HGET', KEYS[7], 'carried') or '0') >= tonumber(ARGV[1]) then return 1 end
  redis.call('HDEL', KEYS[7], '') -- after this write a full server accepts the other
  redis.call('HSET', KEYS[7], 'carried', ARGV[1])
end
return 1
