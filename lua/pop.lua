-- Takes due tasks out, earliest first.
-- KEYS[3] the dead letters
-- ARGV[1] n, at most 250
-- RETURNS { tasks looked at if there may be more, else 0, then per task: id, score, attempt, payload }
-- Not repeated by itself: a second run would take other tasks.
redis.call('ZCARD', KEYS[3]) -- its type, before anything is written
local ready, seen, more, tidy = due(tonumber(ARGV[1]))
local reply, ids = { more and #seen or 0 }, {}
for _, task in ipairs(ready) do
  ids[#ids + 1] = task.id
  reply[#reply + 1] = task.id
  reply[#reply + 1] = task.score
  reply[#reply + 1] = string.format('%.0f', task.attempt)
  reply[#reply + 1] = task.payload
end
if #ids > 0 then
  need('HDEL', tasks)
  redis.call('ZREM', queue, unpack(ids))
  redis.call('HDEL', tasks, unpack(ids))
end
tidy({})
return reply
