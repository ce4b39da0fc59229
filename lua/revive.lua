-- Moves dead letters back into the queue: due now, with no attempts. Stops early at a
-- megabyte of fields. A dead letter with an empty ID, which only a foreign client can have
-- written, is removed: no operation can name it.
-- KEYS[3] the dead letters
-- ARGV[1] wake channel, then the ids
-- RETURNS { ids processed, letters moved back }
-- RETRY never: a task may have died again between two runs.
local processed, revived, size = 0, 0, 0
redis.call('HLEN', tasks) -- check the types before the first write
redis.call('ZCARD', queue)
needAll()

if redis.call('ZREM', KEYS[3], '') == 1 and not redis.call('ZSCORE', queue, '') then redis.call('HDEL', tasks, '') end
for i = 2, #ARGV do
  if size >= 1048576 then break end
  local id = ARGV[i]
  processed = processed + 1
  local score, field = redis.call('ZSCORE', queue, id), redis.call('HGET', tasks, id)
  -- If a foreign producer has put the task back, its ID only leaves the list of dead letters.
  if redis.call('ZREM', KEYS[3], id) == 1 and not score then
    local task = decode(field) or { payload = field }
    redis.call('ZADD', queue, text(now), id)
    storeNew(id, task.payload)
    revived, size = revived + 1, size + #(field or '')
  end
end
wake(ARGV[1], revived > 0 and now)
return { processed, revived }
