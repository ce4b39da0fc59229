-- Returns what next.lua does, of several queues in whose lines the client is: at most 100, see forEachQueue in
-- internal/store/scripts.go.
-- KEYS for each queue: it, its pause, its line   ARGV for each: the client, its watch in ms
-- RETURNS per queue: what next.lua does. The place is 0 if the client is not in line. Microseconds are -2, and it is 0, for an error, and if a task is due
--         and the queue has limits: next.lua knows of them
-- USES prelude, head
-- RETRY idempotent: it renews a watch, and the TTL of a line.
local reply = {}

-- Appends what is known of a queue by its head and by the client's score in line. Says whether it was the last one.
local function append(head, limits, waiting, score, ms, renew)
  local off, id, place = -2, '', 0
  local function hold()
    local has = limits()
    local ends = type(has) == 'string' and string.match(has, '^(%d+) 0 0 ')
    return ends and math.max(tonumber(ends) - us, 0) or has and -2 or 0
  end
  if not head.err then off, id = offAndHead(head[1], head[2], hold) end
  if type(score) == 'string' and off ~= -2 then
    place = tonumber(score) < 0 and off > 0 and 2 or 1
    renew(tonumber(score) < 0 and text(place == 2 and us + ms * 1000 - 1e16 or us), math.max(60000, 4 * ms))
  end
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3], reply[#reply + 4] = off, id, type(waiting) == 'number' and waiting or 0, place
  return #reply == 2 * #ARGV
end

-- The last line is for one queue. The script for several has it for each, with its number.
if append(redis.pcall('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES'), function() return redis.pcall('GET', KEYS[2]) end, redis.pcall('ZCARD', KEYS[3]), redis.pcall('ZSCORE', KEYS[3], ARGV[1]), tonumber(ARGV[2]), function(score, ttl) if score then redis.pcall('ZADD', KEYS[3], 'XX', score, ARGV[1]) end local left = redis.pcall('PTTL', KEYS[3]) if type(left) == 'number' and left < ttl / 2 then redis.pcall('PEXPIRE', KEYS[3], text(ttl)) end end) then return reply end
