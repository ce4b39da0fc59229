-- Counts a queue's tasks and dead letters.
-- KEYS[3] the dead letters
-- RETURNS { due, scheduled, dead, score of the oldest due or '', score of the next scheduled or '', now }
-- RETRY readOnly: changes nothing.
local due = redis.call('ZCOUNT', queue, '-inf', text(now))
local oldest = redis.call('ZRANGEBYSCORE', queue, '-1e300', text(now), 'WITHSCORES', 'LIMIT', 0, 1)[2]
local scheduled = redis.call('ZRANGEBYSCORE', queue, '(' .. text(now), '1e300', 'WITHSCORES', 'LIMIT', 0, 1)[2]
return { due, redis.call('ZCARD', queue) - due, redis.call('ZCARD', KEYS[3]),
  finite(oldest) and text(tonumber(oldest)) or '', finite(scheduled) and text(tonumber(scheduled)) or '', text(now) }
