-- Prelude of the scripts that heed a pause.

-- Returns in how many microseconds a pause ends, more than an hour for later or never, or nil for none.
-- left is what PTTL says of it. An error is none: then what hands tasks out fails.
local function pauseEnds(left)
  if type(left) ~= 'number' or left == -2 then return nil end
  if left < 0 or left > 3600000 then return 3600000001 end
  return (left + 1) * 1000 -- the key is gone when that time has passed
end
