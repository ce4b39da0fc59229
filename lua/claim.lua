-- Leases due tasks, earliest first.
-- KEYS[3] the dead letters
-- ARGV[1] n, at most 250   ARGV[2] lease in seconds   ARGV[3] attempts allowed, 0 for any number
-- RETURNS { tasks looked at if there may be more, else 0, lease end, then per task handed out: id, attempt, payload }
-- Not repeated by itself: a second run would lease other tasks.
local most, lease = tonumber(ARGV[3]), text(now + tonumber(ARGV[2]))
redis.call('ZCARD', KEYS[3]) -- its type, before anything is written
local ready, ids, more, tidy = due(tonumber(ARGV[1]))
local reply, scores, fields, exhausted = { more and #ids or 0, lease }, {}, {}, {}
if #ids == 0 then return reply end

need('ZADD', queue)
need('HSET', tasks)
redis.call('ZREM', queue, ids[1]) -- all of ids get a new score: this is what lets them through on a full server
local attempts, heads = {}, {} -- texts, made once for all tasks with as many attempts
for _, task in ipairs(ready) do
  local n = task.attempt
  if most > 0 and n >= most then
    task.reason = 'attempts used up'
    exhausted[#exhausted + 1] = task
  else
    if not heads[n] then
      attempts[n] = string.format('%.0f', n + 1)
      heads[n] = attempts[n] .. ':' .. lease .. '::'
    end
    scores[#scores + 1] = lease
    scores[#scores + 1] = task.id
    fields[#fields + 1] = task.id
    fields[#fields + 1] = heads[n] .. task.payload
    reply[#reply + 1] = task.id
    reply[#reply + 1] = attempts[n]
    reply[#reply + 1] = task.payload
  end
end
if #scores > 0 then
  redis.call('ZADD', queue, unpack(scores))
  redis.call('HSET', tasks, unpack(fields))
end
tidy(exhausted)
return reply
