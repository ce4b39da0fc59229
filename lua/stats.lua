-- Counts a queue's tasks and dead letters.
-- KEYS[3] the dead letters
-- RETURNS { due, scheduled, dead, score of the oldest due or '', score of the next scheduled or '', now }
-- RETRY readOnly: changes nothing.
local due = redis.call('ZCOUNT', KEYS[1], '-inf', text(now))
local oldest = redis.call('ZRANGEBYSCORE', KEYS[1], '-1e300', text(now), 'WITHSCORES', 'LIMIT', 0, 1)[2]
local scheduled = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(now), '1e300', 'WITHSCORES', 'LIMIT', 0, 1)[2]
return { due, redis.call('ZCARD', KEYS[1]) - due, redis.call('ZCARD', KEYS[3]),
  finite(oldest) and text(tonumber(oldest)) or '', finite(scheduled) and text(tonumber(scheduled)) or '', text(now) }
