-- DEFINES ids, payloads, entries, nextBase
-- USES unpack, rights, prelude, new, wake
-- For enqueue. A batch of new tasks is common. The script returns here, before fields.lua, which
-- saves the server the definition of the functions that follow, and a table for each task.

-- The tasks: their IDs, their payloads if they have any, and their scores and IDs as ZADD takes them.
local ids, payloads, entries, earliest = {}, {}, {}, nil

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
  appendGroup(due, at + 3, at + 2 + count, tonumber(ARGV[3]))
  at = at + 3 + count
  for i = 1, payloadCount do payloads[before + i] = ARGV[at + i - 1] end
  at, filled = at + payloadCount, filled or payloadCount > 0
  if not earliest or due < earliest then earliest = due end
end

-- Adds the tasks if all are new. Says whether they were.
local function batch()
  local known, scores = {}, redis.call('ZMSCORE', KEYS[1], unpack(ids))
  for i, id in ipairs(ids) do
    if scores[i] or known[id] then return false end
    known[id] = true
  end
  if redis.call('HLEN', KEYS[4]) > 0 then
    local fields = redis.call('HMGET', KEYS[4], unpack(ids))
    for i = 1, #ids do
      if fields[i] then return false end
    end
  end
  local left = redis.call('HLEN', KEYS[2]) > 0 -- perhaps payloads of these IDs, see enqueue.lua
  redis.call('ZCARD', KEYS[3])
  need('HSET', KEYS[2])
  need('HDEL', KEYS[2])
  redis.call('ZADD', KEYS[1], unpack(entries))
  local stored, empty = {}, filled and {} or ids
  for i = 1, filled and #ids or 0 do
    local payload = payloads[i] or ''
    if payload == '' then
      empty[#empty + 1] = ids[i]
    else
      stored[#stored + 1] = ids[i]
      stored[#stored + 1] = payload
    end
  end
  if #stored > 0 then redis.call('HSET', KEYS[2], unpack(stored)) end
  if #empty > 0 and left then redis.call('HDEL', KEYS[2], unpack(empty)) end
  wake(earliest, #ids)
  return true
end

local nextBase = text(base + #ids * 0.000001)
if #ids > 1 and not KEYS[10] and batch() then return { nextBase } end
