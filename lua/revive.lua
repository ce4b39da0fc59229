-- Moves dead letters back into the queue: due now, with no attempts. A dead letter with an
-- empty ID, which only a foreign client can have written, is removed: no operation can name it.
-- KEYS[3] the dead letters   KEYS[8] the queue's pause and limits   KEYS[14] see groups.lua
-- ARGV the ids
-- RETURNS the number of letters moved back
-- USES unpack, prelude, state, wake, groups, fields, letters
-- RETRY never: a task may have died again between two runs.
local revived = 0
checkLetters()
needAll()
needGroups()
redis.call('ZSCORE', KEYS[1], '') -- before the first write: it may be denied
local fields = #ARGV > 0 and redis.call('HMGET', KEYS[4], unpack(ARGV)) or {}
dropLetters({ '' })
for i = 1, #ARGV do
  local id = ARGV[i]
  local score = redis.call('ZSCORE', KEYS[1], id)
  -- If a foreign producer has put the task back, its ID only leaves the list of dead letters.
  if redis.call('ZREM', KEYS[3], id) == 1 and not score then
    local holds = holdsOf(fields[i])
    local group = groupOf(holds)
    if group then
      enterGroup(group, now, id, holds)
    else
      redis.call('ZADD', KEYS[1], text(now), id)
      if holds then redis.call('HSET', KEYS[4], id, holds .. '::') else redis.call('HDEL', KEYS[4], id) end
    end
    revived = revived + 1
  end
end
wake(revived > 0 and now, revived)
return revived
