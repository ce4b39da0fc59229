-- DEFINES takePlace
-- USES limits
-- For heartbeat.

-- Takes a place for a lease that has run out, and says whether there was one.
local places
local function takePlace()
  if not places then
    readLimits()
    if limits then limits.allowed(0, 0) end
    places = limits and limits.places or math.huge
  end
  places = places - 1
  return places >= 0
end
