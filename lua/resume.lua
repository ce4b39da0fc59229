-- Ends a queue's pause, and has idle clients see to the head.
-- KEYS[7] the queue's pause
-- RETURNS 1, or 0 if it was not paused
-- RETRY never: between two runs the queue may have been paused again.
redis.call('ZCARD', KEYS[1]) -- a queue with several shards has a string there
local was = redis.call('DEL', KEYS[7])
if was == 1 then seeTo((headOff()), 4) end
return was
