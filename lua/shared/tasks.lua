-- DEFINES ids, payloads, entries, earliest, filled, takes
-- USES prelude, new
-- For the scripts that enqueue: their arguments, from ARGV[3] on.

-- The tasks: their IDs, their payloads if they have any, and their scores and IDs as ZADD takes them.
local ids, payloads, entries, earliest = {}, {}, {}, nil
local takes = {} -- for take, of each group what one of its tasks takes

-- Appends tasks with these IDs, the first of which is due at this time, each so many microseconds
-- after the one before. The scores are what text writes, without a look at each.
local function appendGroup(due, from, to, apart)
  local whole, at, args, format = math.floor(due), 2 * #ids, ARGV, string.format
  local rest = math.floor((due - whole) * 10000000 + 0.5)
  local alike = due >= 1073741824 and due < 4294967295 and rest + (to - from + 1) * apart * 10 < 10000000
  for i = from, to do
    local id = args[i]
    ids[#ids + 1] = id
    if alike then
      entries[at + 1] = format('%d.%07d', whole, rest)
      rest = rest + apart * 10
    else
      entries[at + 1] = text(due + (i - from) * apart / 1000000)
    end
    entries[at + 2] = id
    at = at + 2
  end
end

local at, filled = 4, false
while ARGV[at] do
  local due, count, payloadCount, before = dueAt(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), #ids
  if KEYS[12] then
    takes[#takes + 1] = { units = ARGV[at + 3], item = ARGV[at + 4], restores = ARGV[at + 5] == '1', from = before + 1, to = before + count, due = due }
    at = at + 3
  end
  appendGroup(due, at + 3, at + 2 + count, tonumber(ARGV[3]))
  at = at + 3 + count
  for i = 1, payloadCount do payloads[before + i] = ARGV[at + i - 1] end
  at, filled = at + payloadCount, filled or payloadCount > 0
  if not earliest or due < earliest then earliest = due end
end
