-- DEFINES byReceipt
-- For the scripts that are given tasks by their receipts.

-- Reads ARGV from a place on: a receipt, how many tasks have it, and their IDs, again and again until '' or the end. Returns the IDs, of each receipt
-- which of these it has, and where it has stopped.
local function byReceipt(at)
  local ids, groups = {}, {}
  while ARGV[at] and ARGV[at] ~= '' do
    local first, count = #ids + 1, tonumber(ARGV[at + 1])
    for i = at + 2, at + 1 + count do ids[#ids + 1] = ARGV[i] end
    groups[#groups + 1] = { receipt = ARGV[at], first = first, last = #ids }
    at = at + 2 + count
  end
  return ids, groups, at
end
