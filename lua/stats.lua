-- Counts a queue's tasks and dead letters.
-- KEYS[3] the dead letters   KEYS[5] the leased tasks   KEYS[6] the queue's pause
-- KEYS[7] how many dead letters were dropped: hash with 'own' for those of this shard and, after the
-- queue was moved, 'carried' for those of all shards that it had before
-- RETURNS { due, scheduled, dead, score of the oldest due or '', score of the next scheduled or leased or '', now,
--           leased, how long the pause lasts as in paused.lua, own, carried or -1 }
-- RETRY readOnly: changes nothing.
local due = redis.call('ZCOUNT', KEYS[1], '-inf', text(now))
local leased = redis.call('ZCOUNT', KEYS[5], '(' .. text(now), '+inf')
local oldest = redis.call('ZRANGEBYSCORE', KEYS[1], '-1e300', text(now), 'WITHSCORES', 'LIMIT', 0, 1)[2]
local scheduled = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(now), '1e300', 'WITHSCORES', 'LIMIT', 0, 1)[2]
local dropped = redis.call('HMGET', KEYS[7], 'own', 'carried')
return { due, math.max(redis.call('ZCARD', KEYS[1]) - due - leased, 0), redis.call('ZCARD', KEYS[3]),
  finite(oldest) and text(tonumber(oldest)) or '', finite(scheduled) and text(tonumber(scheduled)) or '', text(now),
  leased, redis.call('PTTL', KEYS[6]), finite(dropped[1]) or 0, finite(dropped[2]) or -1 }
