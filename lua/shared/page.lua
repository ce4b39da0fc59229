-- Prelude of the scripts that list in pages, which end where the next one begins.

-- Compares two IDs byte by byte, as Redis sorts them. Lua's own order depends on the locale.
local function follows(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x > y end
  end
  return #a > #b
end

-- Returns the rank in a zset of the first entry behind this score, as text, and ID. An empty
-- score is before all. The entry itself may be gone. The zset is read by count, how many
-- entries have a score up to this, and entry, the one of a rank.
local function behind(score, id, count, entry)
  if score == '' then return 0 end
  local low, high = count('(' .. score), count(score)
  while low < high do -- the entries with that score are sorted by ID
    local middle = math.floor((low + high) / 2)
    local other = entry(string.format('%.0f', middle))[1]
    if other and not follows(other, id) then low = middle + 1 else high = middle end
  end
  return low
end
