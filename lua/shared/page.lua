-- DEFINES count, entry, range, behind
-- For the scripts that list in pages, which end where the next one begins.

-- Compares two IDs byte by byte, as Redis sorts them. Lua's own order depends on the locale.
local function follows(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x > y end
  end
  return #a > #b
end

-- How the list is read: how many entries have a score up to this, as text; the one of a rank; those of some ranks, with
-- their scores. This is for the queue; a script says how it reads another list.
local function count(score) return redis.call('ZCOUNT', KEYS[1], '-inf', score) end
local function entry(rank) return redis.call('ZRANGE', KEYS[1], rank, rank) end
local function range(from, to) return redis.call('ZRANGE', KEYS[1], from, to, 'WITHSCORES') end
redis.call('ZCARD', KEYS[1]) -- check the types, even if there is nothing to be listed
redis.call('HLEN', KEYS[2])
redis.call('HLEN', KEYS[4])

-- Returns the rank of the first entry behind this score, as text, and ID. An empty
-- score is before all. The entry itself may be gone.
local function behind(score, id)
  if score == '' then return 0 end
  local low, high = count('(' .. score), count(score)
  while low < high do -- the entries with that score are sorted by ID
    local middle = math.floor((low + high) / 2)
    local other = entry(string.format('%.0f', middle))[1]
    if other and not follows(other, id) then low = middle + 1 else high = middle end
  end
  return low
end
