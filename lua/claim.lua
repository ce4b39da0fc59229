-- Claims due tasks, earliest first: each gets a lease and one more attempt.
-- KEYS[3] the dead letters
-- ARGV[1] n, at most 250   ARGV[2] lease in seconds   ARGV[3] attempts allowed, 0 for any number   ARGV[4] wake channel
-- RETURNS { tasks read if there may be more, else 0, lease end, microseconds until the head is due, clients that
--           wait (both as outlook says), then per task claimed: id, attempt, payload }
-- RETRY never: if the script runs twice, the second run claims other tasks.
local lease = text(now + tonumber(ARGV[2]))
redis.call('ZCARD', KEYS[3]) -- check its type before the first write
local ready, ids, more, cleanUp = due(tonumber(ARGV[1]), nil, tonumber(ARGV[3]))
if #ids == 0 then return { 0, lease, outlook(ARGV[4]) } end
more = payloads(ready) or more

need('ZADD', queue)
need('HSET', states)
redis.call('ZREM', queue, ids[1]) -- it gets a new score in any case; after this ZREM a full server accepts the ZADD
local reply, scores, fields = { more and #ids or 0, lease, 0, 0 }, {}, {}
local attempts, built = {}, {} -- per attempt, its text and the state field: built once
for _, task in ipairs(ready) do
  local n, unseen = nextAttempt(task)
  local kind = n * 3 + unseen
  if not built[kind] then
    attempts[kind] = string.format('%.0f', n)
    built[kind] = attempts[kind] .. (unseen > 0 and '+' .. unseen or '') .. ':' .. lease .. ':'
  end
  scores[#scores + 1] = lease
  scores[#scores + 1] = task.id
  fields[#fields + 1] = task.id
  fields[#fields + 1] = built[kind]
  reply[#reply + 1] = task.id
  reply[#reply + 1] = attempts[kind]
  reply[#reply + 1] = task.payload or ''
end
if #scores > 0 then
  redis.call('ZADD', queue, unpack(scores))
  redis.call('HSET', states, unpack(fields))
end
cleanUp()
reply[3], reply[4] = outlook(ARGV[4])
-- The claimant has perhaps no room for more. Others may not know of the new head.
if more and reply[4] > 0 then announce(ARGV[4], reply[3], reply[4]) end
return reply
