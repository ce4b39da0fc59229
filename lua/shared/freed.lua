-- Prelude of the scripts that end leases, behind limits.lua and wake.lua.

-- Has idle clients see to the head if so many leases have ended, at most, of a queue that had as many as it may.
local function freed(n)
  readLimits() -- an error is none: clients look
  if not limits or not limits.running or limits.ends or not pcall(allowed, 0, 0) then return end
  if limits.places > 0 and limits.places <= n then seeTo(math.max(headOff(), (heldBack())), n) end
end
