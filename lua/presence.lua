-- Notes that a worker lives, or that it has ended. Then it drops dead letters and forgets finished
-- tasks: some of those that the scripts which bury and finish have left.
-- KEYS[3] the dead letters   KEYS[9] the queue's counts   KEYS[10] and KEYS[11] see done.lua
-- KEYS[12] see stock.lua   KEYS[13] the workers: zset, of each what it says of itself, with the time until which that counts
-- ARGV[1] for how many seconds it counts   ARGV[2] what it says of itself, '' if it has ended
-- ARGV[3] and ARGV[4] as bury's first two   ARGV[5] for how many seconds finished tasks are
-- remembered, 0 for what others say; then what it may have said before
-- RETURNS 1 if more are to be dropped or forgotten, else 0
-- USES unpack, prelude, wake, done, sweep, groups, trim
-- RETRY idempotent: a second run drops and forgets some of what the first has left.
redis.call('ZCARD', KEYS[1]) -- what is of another type is no queue
redis.call('ZREMRANGEBYSCORE', KEYS[13], '-inf', text(now)) -- after this a full server accepts the rest
redis.call('ZREMRANGEBYSCORE', KEYS[13], '(' .. text(now + 10800), '+inf') -- the clock was ahead: none says so much
if #ARGV > 5 then redis.call('ZREM', KEYS[13], unpack(ARGV, 6)) end
if ARGV[2] ~= '' then redis.call('ZADD', KEYS[13], text(now + tonumber(ARGV[1])), ARGV[2]) end
local last = finite(redis.call('ZRANGE', KEYS[13], '-1', '-1', 'WITHSCORES')[2])
if last then redis.call('PEXPIRE', KEYS[13], string.format('%.0f', math.ceil((last - now) * 1000))) end
redis.call('HSET', KEYS[9], 'worked', text(now))
redis.call('PEXPIRE', KEYS[9], '86400000')
local more, age = trim(0, ARGV[3], ARGV[4]), tonumber(ARGV[5])
if age > 0 then
  redis.call('HSET', KEYS[9], 'retention', ARGV[5]) -- for who asks without knowing it
  more = forgetDone(age) or more
end
sweep()
sweepGroups()
wake(earliestPromoted)
return more and 1 or 0
