-- Prelude of enqueue, with its arguments; it runs before fields.lua.

-- The time from which delays count. A batch of several scripts keeps its order: each one
-- begins where the one before has ended.
local base = math.max(now, tonumber(ARGV[3]))

-- Reads a due time as the client writes it: '+' seconds from base, or '@' Unix seconds.
local function dueAt(spec)
  local at = tonumber(string.sub(spec, 2))
  if string.byte(spec) == 43 then return base + at end
  return at
end

-- One new task is the most common case. To return here saves the server the definition of
-- the functions that follow, a quarter of the script's time.
if ARGV[6] == '1' and #ARGV < 10 and not redis.call('HGET', KEYS[4], ARGV[8]) then
  local id, due, payload = ARGV[8], dueAt(ARGV[5]), ARGV[9] or ''
  if redis.call('ZADD', KEYS[1], 'NX', text(due), id) == 1 then
    local stored -- or removed: a foreign consumer's ZREM may have left a payload
    if payload ~= '' then stored = redis.pcall('HSET', KEYS[2], id, payload) else stored = redis.pcall('HDEL', KEYS[2], id) end
    if type(stored) == 'table' then -- denied, or no hash: to undo the ZADD is cheaper than to check the ACL before
      redis.call('ZREM', KEYS[1], id)
      return stored
    end
    if redis.pcall('ZRANGE', KEYS[1], 0, 0)[1] == id then -- as wake does in fields.lua
      local clients = waiters(ARGV[2])
      publish(ARGV[2], string.format('%.0f 1 %.0f', clients, math.max(math.ceil((due - now) * 1000000), 0)))
    end
    return { text(base + 0.000001) }
  end
end
