-- Puts dead letters back into the queue: due now, no attempts. Stops early at a
-- megabyte.
-- KEYS[3] the dead letters
-- ARGV[1] wake channel, then the ids
-- RETURNS { ids dealt with, letters put back }
-- Not repeated by itself: one may have died again between two runs.
local dealt, revived, size = 0, 0, 0
redis.call('HLEN', tasks) -- the types, before anything is written
redis.call('ZCARD', queue)
needAll()

for i = 2, #ARGV do
  if size >= 1048576 then break end
  local id = ARGV[i]
  dealt = dealt + 1
  local score, field = redis.call('ZSCORE', queue, id), redis.call('HGET', tasks, id)
  -- One that a foreign producer has put back only leaves the list.
  if redis.call('ZREM', KEYS[3], id) == 1 and not score then
    local task = decode(field) or { payload = field }
    redis.call('ZADD', queue, text(now), id)
    store(id, 0, nil, nil, task.payload)
    revived, size = revived + 1, size + #(field or '')
  end
end
wake(ARGV[1], revived > 0 and now)
return { dealt, revived }
