-- Returns the workers that live.
-- KEYS[13] the workers, see presence.lua
-- RETURNS of each what it says of itself, and until when that counts, in Unix seconds
-- USES prelude
-- RETRY readOnly: changes nothing.
redis.call('ZCARD', KEYS[1]) -- what is of another type is no queue
return redis.call('ZRANGEBYSCORE', KEYS[13], '(' .. text(now), text(now + 10800), 'WITHSCORES')
