-- Ends a queue's pause, and has idle clients see to the head.
-- KEYS[8] the queue's pause and limits
-- RETURNS 1, or 0 if it was not paused
-- USES prelude, idle, wake, limits, change
-- RETRY never: between two runs the queue may have been paused again.
if limits.ends <= us then return 0 end
limits.ends = 0
writeLimits()
seeTo((headOff()), 4)
return 1
