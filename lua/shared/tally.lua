-- DEFINES tally
-- For the scripts that end tasks or leases: how many were done, of these discarded, retried, buried, lost and dropped.
--   KEYS[9] these numbers: hash, which is gone when less than 16 was counted in a day, and no Worker ran, which presence.lua notes

-- Adds n to a number. Where that fails, nothing else does.
local function tally(what, n)
  local sum = n > 0 and redis.pcall('HINCRBY', KEYS[9], what, string.format('%d', n))
  if type(sum) == 'number' and (sum == n or sum % 16 < n) then redis.pcall('PEXPIRE', KEYS[9], '86400000') end -- it takes as long as to count
end
