-- Pauses a queue, or what has been paused for another time. That may be shorter: then a client is told of the head, and
-- learns of the new end when it claims.
-- KEYS[7] the queue's pause: a string that lives as long as it lasts
-- ARGV[1] for how long, in ms, or 0 for no end
-- RETURNS 1
-- RETRY never: between two runs the queue may have been resumed.
redis.call('ZCARD', KEYS[1]) -- a queue with several shards has a string there
need('SET', KEYS[7])
local was = redis.call('DEL', KEYS[7]) -- after this write a full server accepts the next one
if ARGV[1] == '0' then redis.call('SET', KEYS[7], '1') else redis.call('SET', KEYS[7], '1', 'PX', ARGV[1]) end
if was == 1 then seeTo((headOff()), 1) end
return 1
