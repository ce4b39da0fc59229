-- DEFINES base, dueAt
-- USES prelude, queue_idle
-- For enqueue, with its arguments, and take, which has more keys: it does not return here.

-- The time from which delays count. A batch of several scripts keeps its order: each one
-- begins where the one before has ended.
local base = math.max(now, tonumber(ARGV[2]))

-- Reads a due time as the client writes it: '+' seconds from base, or '@' Unix seconds.
local function dueAt(spec)
  local at = tonumber(string.sub(spec, 2))
  if string.byte(spec) == 43 then return base + at end
  return at
end

-- One new task is the most common case. To return here saves the server the definition of
-- the functions that follow, a quarter of the script's time.
if ARGV[5] == '1' and #ARGV[3] == 1 and not KEYS[10] and #ARGV < 9 and not redis.call('HGET', KEYS[4], ARGV[7]) then
  local id, due, payload = ARGV[7], dueAt(ARGV[4]), ARGV[8] or ''
  if redis.call('ZADD', KEYS[1], 'NX', text(due), id) == 1 then
    local stored -- or removed: a foreign consumer's ZREM may have left a payload
    if payload ~= '' then stored = redis.pcall('HSET', KEYS[2], id, payload) else stored = redis.pcall('HDEL', KEYS[2], id) end
    if type(stored) == 'table' then -- denied, or no hash: to undo the ZADD is cheaper than to check the ACL before
      redis.call('ZREM', KEYS[1], id)
      return stored
    end
    if redis.pcall('ZRANGE', KEYS[1], 0, 0)[1] == id then -- as wake does in fields.lua
      seeTo(math.ceil((due - now) * 1000000), 1)
    end
    return { text(base + 0.000001) }
  end
end
