-- Pauses a queue, or what has been paused for another time, or ends its pause. Idle clients see to the head of what was paused: the end of
-- a pause may be sooner then. If it is not, they learn of it when they claim.
-- KEYS[8] the queue's pause and limits
-- ARGV[1] for how long, in ms, 0 for no end, or '' to end the pause
-- RETURNS 1
-- USES prelude, queue_idle, wake, limits, change
-- RETRY never: between two runs others may have paused the queue, or ended its pause.
local wasPaused, ms = limits.ends > us, tonumber(ARGV[1])
limits.ends = ms == 0 and 9e15 or ms and us + ms * 1000 or 0
writeLimits()
if wasPaused then seeTo((headOff()), 4) end
return 1
