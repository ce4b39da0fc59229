-- DEFINES nextBase
-- USES unpack, rights, prelude, new, wake, tasks
-- For enqueue. A batch of new tasks is common. The script returns here, before fields.lua, which
-- saves the server the definition of the functions that follow, and a table for each task.

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
