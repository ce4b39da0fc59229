-- Prelude of the scripts that end tasks or leases: how many were done, retried, buried, lost and dropped.
--   KEYS[9] these numbers: hash, which is gone when nothing was counted for a day

-- Adds n to a number. Where that fails, nothing else does.
local function tally(what, n)
  if n > 0 and type(redis.pcall('HINCRBY', KEYS[9], what, string.format('%d', n))) == 'number' then redis.pcall('PEXPIRE', KEYS[9], '86400000') end
end
