-- DEFINES ids, payloads, entries, earliest, filled, extras
-- USES prelude, new
-- For the scripts that enqueue: their arguments.
--   ARGV[3] how many microseconds after the one before a task of a group is due, 0 to 9; then '+' if groups have what stands in front of state
--   fields; then '<' and the most tasks that the queue may have, if that is bounded: KEYS has all keys then
--   of each group of tasks: when the first is due ('+' seconds from ARGV[2] or '@' Unix seconds), the number of IDs, the number of payloads (0 if all
--   are empty, else one per ID), with a '+' two more, see take.lua, the IDs, the payloads

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

local at, filled, apart, more = 4, false, tonumber(string.sub(ARGV[3], 1, 1)), string.byte(ARGV[3], 2) == 43 and 2 or 0
while ARGV[at] do
  local due, count, payloadCount, before = dueAt(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), #ids
  if more > 0 then
    extras[#extras + 1] = { ARGV[at + 3], ARGV[at + 4], from = before + 1, to = before + count, due = due }
    at = at + more
  end
  appendGroup(due, at + 3, at + 2 + count, apart)
  at = at + 3 + count
  for i = 1, payloadCount do payloads[before + i] = ARGV[at + i - 1] end
  at, filled = at + payloadCount, filled or payloadCount > 0
  if not earliest or due < earliest then earliest = due end
end
