-- Pauses a queue, or what has been paused for another time.
-- KEYS[1] the queue's pause: a string that lives as long as it lasts
-- ARGV[1] for how long, in ms, or 0 for no end
-- RETURNS 1
-- RETRY never: between two runs the queue may have been resumed.
need('SET', KEYS[1])
redis.call('DEL', KEYS[1]) -- after this write a full server accepts the next one
if ARGV[1] == '0' then redis.call('SET', KEYS[1], '1') else redis.call('SET', KEYS[1], '1', 'PX', ARGV[1]) end
return 1
