-- Lists dead letters, in the order of their deaths, from behind the last one of the page
-- before. Stops early at a megabyte.
-- KEYS[3] the dead letters
-- ARGV[1] n, at most 250   ARGV[2] score and ARGV[3] id of that last one, or '' and ''
-- ARGV[5] the most bytes of a payload, as in payload.lua
-- RETURNS { score and id of the last letter read if there may be more, else '' and '',
--           then per letter: id, time of death, attempt, reason, payload }
-- RETRY readOnly: changes nothing.
local function count(score) return redis.call('ZCOUNT', KEYS[3], '-inf', score) end
local function entry(rank) return redis.call('ZRANGE', KEYS[3], rank, rank) end
local n, first = tonumber(ARGV[1]), behind(ARGV[2], ARGV[3], count, entry)
local found = redis.call('ZRANGE', KEYS[3], string.format('%.0f', first), string.format('%.0f', first + n - 1), 'WITHSCORES')
local reply, examined, size = { '', '' }, 0, 0
redis.call('HLEN', KEYS[2]) -- check the types, even if there are no dead letters
redis.call('HLEN', KEYS[4])
redis.call('ZCARD', KEYS[1])

for i = 1, #found, 2 do
  if size >= 1048576 then break end
  local id = found[i]
  examined = examined + 1
  if not redis.call('ZSCORE', KEYS[1], id) then -- else a foreign producer has put the task back
    local field, payload, read = redis.call('HGET', KEYS[4], id), payloadUpTo(ARGV[5], id)
    local task = decode(field) or { attempt = 0 }
    size = size + read + #id + #(field or '')
    reply[#reply + 1] = id
    reply[#reply + 1] = found[i + 1]
    reply[#reply + 1] = string.format('%.0f', task.attempt)
    reply[#reply + 1] = task.reason or 'malformed'
    reply[#reply + 1] = payload
  end
end
if examined > 0 and (2 * n == #found or 2 * examined < #found) then
  reply[1], reply[2] = found[2 * examined], found[2 * examined - 1]
end
return reply
