-- Writes, and changes nothing. WAIT counts what its own connection has written, and the script before it may have
-- found nothing to do: another connection has done it.
-- KEYS[1] the queue   KEYS[4] its states. It has only what it needs, since it is always sent in full.
-- RETURNS 1
-- USES rights
-- RETRY idempotent: it changes nothing.
need('HDEL', KEYS[4])
local head = redis.pcall('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES')
if head[1] then -- a full server accepts this
  need('ZADD', KEYS[1])
  redis.call('ZREM', KEYS[1], head[1])
  redis.call('ZADD', KEYS[1], head[2], head[1])
else
  redis.call('HDEL', KEYS[4], '') -- first: after it a full server accepts the next write
  redis.call('HSET', KEYS[4], '', '1')
  redis.call('HDEL', KEYS[4], '')
end
return 1
