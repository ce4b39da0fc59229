-- Ends a queue's pause, and tells waiters of the head.
-- KEYS[6] the queue's pause
-- ARGV[1] wake channel
-- RETURNS 1, or 0 if it was not paused
-- RETRY never: between two runs the queue may have been paused again.
redis.call('ZCARD', KEYS[1]) -- a queue with several shards has a string there
local was = redis.call('DEL', KEYS[6])
local off = outlook(ARGV[1])
if was == 1 and off <= 3600000000 then announce(ARGV[1], math.max(off, 0), waiters(ARGV[1])) end
return was
