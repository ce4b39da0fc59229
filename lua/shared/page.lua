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
-- score is before all. The entry itself may be gone.
local function behind(key, score, id)
  if score == '' then return 0 end
  local low, high = redis.call('ZCOUNT', key, '-inf', '(' .. score), redis.call('ZCOUNT', key, '-inf', score)
  while low < high do -- the entries with that score are sorted by ID
    local middle = math.floor((low + high) / 2)
    local rank = string.format('%.0f', middle)
    local other = redis.call('ZRANGE', key, rank, rank)[1]
    if other and not follows(other, id) then low = middle + 1 else high = middle end
  end
  return low
end
