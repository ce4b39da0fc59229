-- DEFINES wanted, count, behind, fitting
-- USES prelude, state, fields
-- For list, whose pages end where the next one begins. KEYS[12] is what it lists.

local wanted = tonumber(ARGV[4])

-- Compares two IDs byte by byte, as Redis sorts them. Lua's own order depends on the locale.
local function follows(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x > y end
  end
  return #a > #b
end

-- Returns how many entries have a score up to this, as text.
local function count(score) return redis.call('ZCOUNT', KEYS[12], '-inf', score) end

-- Returns the rank of the first entry behind this score, as text, and ID. An empty
-- score is before all. The entry itself may be gone.
local function behind(score, id)
  if score == '' then return 0 end
  local low, high = count('(' .. score), count(score)
  while low < high do -- the entries with that score are sorted by ID
    local middle = math.floor((low + high) / 2)
    local rank = string.format('%.0f', middle)
    local other = redis.call('ZRANGE', KEYS[12], rank, rank)[1]
    if other and not follows(other, id) then low = middle + 1 else high = middle end
  end
  return low
end

-- Returns an entry if it is to be listed, with its score. A dead letter whose task a foreign producer has put back is not, and nothing that
-- is done and has been enqueued again.
local function fitting(id, field, score, place)
  if wanted == 4 then return not score and (decode(field) or { attempt = 0 }), place end
  local task = wanted == 5 and (decode(field) or {}) or live(field)
  local waits = task and task.due and not task.lease -- in its group
  if wanted == 5 then return not score and not waits and not (task.dead and redis.call('ZSCORE', KEYS[3], id)) and { attempt = 0 }, place end
  score = finite(score)
  if not task or not score or id == '' or stateOf(task, score) ~= wanted then return end
  local at = score
  task, score = resolve(task, score)
  if score ~= at and (wanted == 1 or wanted == 2 and ARGV[6] == '') then return end -- a page behind it could not go on from there
  return task, text(score)
end
