-- Gives a queue other limits, or none, and has idle clients see to the head. Tokens that were spent stay spent, as many as there are now.
-- KEYS[8] the queue's pause and limits
-- ARGV[1] how many leases, 0 for any number   ARGV[2] how many hand-outs in ARGV[3] microseconds, 0 for any number   ARGV[4] how many at once
-- ARGV[5] how many tasks of a group may be in play, 0 for one   ARGV[6] 1 to leave the queue as it is if its limits have been set
-- RETURNS 1 if they are set, else 0
-- USES prelude, queue_idle, wake, limits, change
-- RETRY never: between two runs others may have changed them.
if ARGV[6] == '1' and areSet() then return 0 end
local before, running, rate, per, burst, spent = limits, tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), 0
if before.rate > 0 then spent = math.min(math.max(before.spent - us, 0) * before.rate / before.per, burst) end
if rate > 0 and spent > 0 then spent = math.ceil(us + spent * per / rate) end
local group = tonumber(ARGV[5])
if running + rate + group == 0 then burst = 1 end
limits = { ends = before.ends, running = running, rate = rate, per = per, burst = burst, group = group, spent = spent }
writeLimits()
seeTo((headOff()), 4)
return 1
