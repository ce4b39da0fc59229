-- Gives a queue other limits, or none, and has idle clients see to the head. Tokens that were spent stay spent, as many as there are now.
-- KEYS[7] the queue's pause and limits
-- ARGV[1] how many leases, 0 for any number   ARGV[2] how many hand-outs in ARGV[3] microseconds, 0 for any number   ARGV[4] how many at once
-- RETURNS 1
-- RETRY never: between two runs others may have changed them.
local spent = limits.rate and math.max(limits.spent - us, 0) * limits.rate / limits.per or 0
local function positive(n) return n ~= '0' and tonumber(n) or nil end
limits = { ends = limits.ends, running = positive(ARGV[1]), rate = positive(ARGV[2]), per = tonumber(ARGV[3]), burst = tonumber(ARGV[4]) }
if limits.rate and spent > 0 then limits.spent = math.ceil(us + math.min(spent, limits.burst) * limits.per / limits.rate) end
writeLimits()
seeTo((headOff()), 4)
return 1
