-- Removes a task in whatever state it is.
-- KEYS[3] the dead letters
-- ARGV[1] id
-- RETURNS 1 removed   0 there was none
-- RETRY never: if the script runs twice, the second run may remove a task enqueued since.
redis.call('HLEN', tasks) -- check the types before the first write
redis.call('ZCARD', KEYS[3])
need('HDEL', tasks)
local removed = redis.call('ZREM', queue, ARGV[1]) + redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('HDEL', tasks, ARGV[1])
return removed > 0 and 1 or 0
