-- Notes that a worker lives, or that it has ended.
-- KEYS[9] the queue's counts   KEYS[12] the workers: zset, of each what it says of itself, with the time until which that counts
-- ARGV[1] for how many seconds it counts   ARGV[2] what it says of itself, '' if it has ended; then what it may have said before
-- RETURNS 1
-- RETRY idempotent.
redis.call('ZCARD', KEYS[1]) -- what is of another type is no queue
redis.call('ZREMRANGEBYSCORE', KEYS[12], '-inf', text(now)) -- after this a full server accepts the rest
if #ARGV > 2 then redis.call('ZREM', KEYS[12], unpack(ARGV, 3)) end
if ARGV[2] ~= '' then redis.call('ZADD', KEYS[12], text(now + tonumber(ARGV[1])), ARGV[2]) end
local last = finite(redis.call('ZRANGE', KEYS[12], '-1', '-1', 'WITHSCORES')[2])
if last then redis.call('PEXPIRE', KEYS[12], string.format('%.0f', math.ceil((last - now) * 1000))) end
redis.call('HSET', KEYS[9], 'worked', text(now))
redis.call('PEXPIRE', KEYS[9], '86400000')
return 1
