-- Pauses a queue, or what has been paused for another time. That may be shorter: then a client is told of the head, and
-- learns of the new end when it claims.
-- KEYS[8] the queue's pause and limits
-- ARGV[1] for how long, in ms, or 0 for no end
-- RETURNS 1
-- USES prelude, idle, wake, limits, change
-- RETRY never: between two runs the queue may have been resumed.
local wasPaused = limits.ends > us
limits.ends = ARGV[1] == '0' and 9e15 or us + tonumber(ARGV[1]) * 1000
writeLimits()
if wasPaused then seeTo((headOff()), 1) end
return 1
