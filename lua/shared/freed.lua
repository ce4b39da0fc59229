-- Prelude of the scripts that end leases, behind limits.lua and wake.lua.

-- Has idle clients see to the head if so many leases have ended, at most, of a queue that had as many as it may. An error is none: clients look.
local function freed(n)
  pcall(function()
    readLimits()
    if not limits or not limits.running or limits.ends then return end
    allowed(0)
    if limits.places > 0 and limits.places <= n then seeTo(math.max(headOff(), (heldBack())), n) end
  end)
end
