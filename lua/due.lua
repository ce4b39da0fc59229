-- Second prelude, of the scripts that take due tasks.

-- Reads up to n tasks whose score has come, and changes nothing. Returns those
-- to hand out, the IDs looked at, and a function that puts the others where
-- they belong, to be called when something has been written: a version that
-- waited for a lease to run out at its own time, a poison entry and what the
-- caller adds to it among the dead letters.
local function due(n)
  local ready, postponed, graves, revived = {}, {}, {}, {}
  local found = redis.call('ZRANGEBYSCORE', queue, '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, n)
  local ids = {}
  for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
  if #ids == 0 then return ready, ids, function() end end

  local fields = redis.call('HMGET', tasks, unpack(ids))
  for i, id in ipairs(ids) do
    local score, task = finite(found[2 * i]), live(fields[i])
    if not score or not task then
      graves[#graves + 1] = { id = id, attempt = 0, payload = fields[i] or '', reason = 'malformed' }
    else
      if task.revived then revived[#revived + 1] = id end
      local at
      task, at = settle(task, score)
      task.id, task.score = id, at
      local list = at > now and postponed or ready
      list[#list + 1] = task
    end
  end

  return ready, ids, function(exhausted)
    if #revived > 0 then redis.call('ZREM', KEYS[3], unpack(revived)) end
    for _, task in ipairs(postponed) do
      move(task.id, task.score)
      store(task.id, 0, nil, nil, task.payload)
    end
    for _, task in ipairs(exhausted) do graves[#graves + 1] = task end
    for _, task in ipairs(graves) do
      redis.call('ZREM', queue, task.id)
      redis.call('ZADD', KEYS[3], text(now), task.id)
      redis.call('HSET', tasks, task.id,
        string.format('%.0f:dead:%d:', task.attempt, #task.reason) .. task.reason .. task.payload)
    end
  end
end
