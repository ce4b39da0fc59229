-- DEFINES checkLetters, dropLetters
-- USES unpack, rights, stock
-- For the scripts that remove dead letters.

-- Checks what that needs, before the first write of a script.
local function checkLetters()
  redis.call('ZCARD', KEYS[1])
  redis.call('HLEN', KEYS[2])
  redis.call('HLEN', KEYS[4])
  need('HDEL', KEYS[2])
  need('HDEL', KEYS[4])
end

-- Removes the dead letters that have some IDs, 250 at most. One whose task is in the queue again only leaves the list, as in revive.lua.
-- Returns how many others there were.
local function dropLetters(ids)
  local dropped, had, queued, fields = {}, {}, redis.call('ZMSCORE', KEYS[1], unpack(ids)), redis.call('HMGET', KEYS[4], unpack(ids))
  needStock(fields)
  for i, id in ipairs(ids) do
    if redis.call('ZREM', KEYS[3], id) == 1 and not queued[i] then dropped[#dropped + 1], had[id] = id, fields[i] end
  end
  if #dropped > 0 then
    redis.call('HDEL', KEYS[2], unpack(dropped))
    redis.call('HDEL', KEYS[4], unpack(dropped))
    for _, id in ipairs(dropped) do settle(id, had[id], false) end
  end
  return #dropped
end
