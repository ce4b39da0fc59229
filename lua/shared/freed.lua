-- DEFINES freed
-- USES queue_idle, wake, limits
-- For the scripts that end leases.

-- Has idle clients see to the head if so many leases have ended, at most, of a queue that had as many as it may. An error is none: clients look.
local function freed(n)
  if not pcall(readLimits) or not limits or limits.running == 0 or not pcall(limits.allowed, 0) then return end
  if limits.places > 0 and limits.places <= n then seeTo(math.max(headOff(), (limits.heldBack())), n) end
end
