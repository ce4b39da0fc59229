-- Looks at dead letters, those that died first at the front. Stops early at a
-- megabyte. Changes nothing.
-- KEYS[3] the dead letters
-- ARGV[1] n, at most 250   ARGV[2] how many to skip
-- RETURNS { letters looked at if there may be more, else 0, then per letter: id, time of death, attempt, reason, payload }
local n, skip = tonumber(ARGV[1]), tonumber(ARGV[2])
local found = redis.call('ZRANGE', KEYS[3], string.format('%.0f', skip), string.format('%.0f', skip + n - 1), 'WITHSCORES')
local reply, looked, size = { 0 }, 0, 0
redis.call('HLEN', tasks) -- the types, even where there is nothing to look at
redis.call('ZCARD', queue)

for i = 1, #found, 2 do
  if size >= 1048576 then break end
  local id = found[i]
  local field = redis.call('HGET', tasks, id)
  looked, size = looked + 1, size + #(field or '')
  if not redis.call('ZSCORE', queue, id) then -- else a foreign producer has put it back
    local task = decode(field) or { attempt = 0, payload = field }
    reply[#reply + 1] = id
    reply[#reply + 1] = text(finite(found[i + 1]) or 0)
    reply[#reply + 1] = string.format('%.0f', task.attempt)
    reply[#reply + 1] = task.reason or 'malformed'
    reply[#reply + 1] = task.payload
  end
end
if 2 * n == #found or 2 * looked < #found then reply[1] = looked end
return reply
