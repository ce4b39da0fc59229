-- DEFINES ids, payloads, entries, earliest, filled, extras
-- USES prelude, new
-- For the scripts that enqueue: their arguments, from ARGV[3] on.

-- The tasks: their IDs, their payloads if they have any, and their scores and IDs as ZADD takes them.
local ids, payloads, entries, earliest = {}, {}, {}, nil
local extras = {} -- for take and enqueue_group, of each group of arguments what they have before its IDs, and which IDs these are

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

local at, filled, more = 4, false, KEYS[12] and 2 or 0
while ARGV[at] do
  local due, count, payloadCount, before = dueAt(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), #ids
  if more > 0 then
    extras[#extras + 1] = { ARGV[at + 3], ARGV[at + 4], from = before + 1, to = before + count, due = due }
    at = at + more
  end
  appendGroup(due, at + 3, at + 2 + count, tonumber(ARGV[3]))
  at = at + 3 + count
  for i = 1, payloadCount do payloads[before + i] = ARGV[at + i - 1] end
  at, filled = at + payloadCount, filled or payloadCount > 0
  if not earliest or due < earliest then earliest = due end
end
