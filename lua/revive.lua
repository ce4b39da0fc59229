-- Moves dead letters back into the queue: due now, with no attempts. A dead letter with an
-- empty ID, which only a foreign client can have written, is removed: no operation can name it.
-- KEYS[3] the dead letters
-- ARGV[1] wake channel, then the ids
-- RETURNS the number of letters moved back
-- RETRY never: a task may have died again between two runs.
local revived = 0
redis.call('HLEN', tasks) -- check the types before the first write
redis.call('HLEN', states)
redis.call('ZCARD', queue)
needAll()

local queued = redis.call('ZSCORE', queue, '') -- before the first write: it may be denied
if redis.call('ZREM', KEYS[3], '') == 1 and not queued then
  redis.call('HDEL', tasks, '')
  redis.call('HDEL', states, '')
end
for i = 2, #ARGV do
  local id = ARGV[i]
  local score = redis.call('ZSCORE', queue, id)
  -- If a foreign producer has put the task back, its ID only leaves the list of dead letters.
  if redis.call('ZREM', KEYS[3], id) == 1 and not score then
    redis.call('ZADD', queue, text(now), id)
    redis.call('HDEL', states, id)
    revived = revived + 1
  end
end
wake(ARGV[1], revived > 0 and now)
return revived
