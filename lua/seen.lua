-- Notes that a worker lives, or that it has ended.
-- KEYS[9] the queue's counts   KEYS[10] the workers: zset, of each what it says of itself, with the time at which it has
-- ARGV[1] what it says of itself, '' if it has ended; then what it may have said before
-- RETURNS 1
-- RETRY idempotent.
redis.call('ZCARD', KEYS[1]) -- a queue with several shards has a string there
redis.call('ZREMRANGEBYSCORE', KEYS[10], '-inf', text(now - 45)) -- after this a full server accepts the rest
if #ARGV > 1 then redis.call('ZREM', KEYS[10], unpack(ARGV, 2)) end
if ARGV[1] ~= '' then redis.call('ZADD', KEYS[10], text(now), ARGV[1]) end
redis.call('PEXPIRE', KEYS[10], '45000')
redis.call('HSET', KEYS[9], 'worked', text(now))
redis.call('PEXPIRE', KEYS[9], '86400000')
return 1
