-- DEFINES wanted, count, between, entries, isMore, fitting
-- USES prelude, read, state, fields
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

-- Returns how many entries stand before this score, as text, and ID; with the one itself if it is to count. That one may be gone.
local function before(score, id, itself)
  local low, high = count('(' .. score), count(score)
  while low < high do -- the entries with that score are sorted by ID
    local middle = math.floor((low + high) / 2)
    local rank = string.format('%.0f', middle)
    local other = redis.call('ZRANGE', KEYS[12], rank, rank)[1]
    if other and not follows(other, id) and (itself or other ~= id) then low = middle + 1 else high = middle end
  end
  return low
end

-- From where on it lists, and before where it ends, in the order in which it lists.
local isNewest, all, first, last = ARGV[8] == 'newest', 0, 0, 0

-- Sets that for the entries of these ranks, the last one excluded, which are behind the last one of the page before.
local function between(from, to)
  local cursor = ARGV[2] ~= '' and before(ARGV[2], ARGV[3], not isNewest)
  all = redis.call('ZCARD', KEYS[12])
  first, last = math.max(from, cursor or 0), to or all
  if isNewest then first, last = all - math.min(last, cursor or last), all - from end
end

-- Returns up to n entries, each with its score, behind the first ones.
local function entries(skipped, n)
  local from = first + skipped
  n = math.min(n, last - from)
  if n <= 0 then return {} end
  if isNewest then from = all - from - n end
  local found = redis.call('ZRANGE', KEYS[12], string.format('%.0f', from), string.format('%.0f', from + n - 1), 'WITHSCORES')
  if not isNewest then return found end
  local turned = {}
  for i = #found - 1, 1, -2 do append(turned, found[i], found[i + 1]) end
  return turned
end

local function isMore(skipped) return first + skipped < last end

-- Returns an entry if it is to be listed, with its score. A dead letter whose task a foreign producer has put back is not, and nothing that
-- is done and has been enqueued again.
local function fitting(id, field, score, place)
  if wanted == 4 then return not score and (decode(field) or { attempt = 0 }), place end
  local task = wanted == 5 and (decode(field) or {}) or live(field)
  local waits = task and task.due and not task.lease -- in its group
  if wanted == 5 then return not score and not waits and not (task.dead and redis.call('ZSCORE', KEYS[3], id)) and { attempt = 0 }, place end
  score = finite(score)
  if not task or not score or id == '' then return end
  local state = stateOf(task, score)
  if state == 1 and score <= now and ARGV[6] == 'all' then state = 2 end -- a version which is due later, and counts as due until then
  if state ~= wanted then return end
  local at = score
  task, score = resolve(task, score)
  if score ~= at and (wanted == 1 or wanted == 2 and ARGV[6] == '') then return end -- a page behind it could not go on from there
  return task, text(score)
end
