-- Second prelude, of the scripts that deal with fields.
-- A field is '<attempt>:<lease>:<deferred>:<payload>', each part may be empty.
-- Of a dead letter: '<attempt>:dead:<bytes in reason>:<reason><payload>'.
-- No field at all means a task without payload that was never claimed.

-- What a change of a task may take besides the ZREM that it begins with.
local function needAll()
  need('ZADD', queue)
  need('HSET', tasks)
  need('HDEL', tasks)
end

-- Decodes a field; nil for one that the library did not write.
local function decode(field)
  if not field then return { attempt = 0, payload = '' } end
  local _, last, attempt, lease, due = string.find(field, '^(%d*):([%d.e+-]*):([%d.e+-]*):')
  if not last then
    _, last, attempt, due = string.find(field, '^(%d+):dead:(%d+):')
    if not last or #attempt > 9 or #due > 9 then return nil end
    due = last + tonumber(due)
    return { attempt = tonumber(attempt), dead = true,
      reason = string.sub(field, last + 1, due), payload = string.sub(field, due + 1) }
  end
  local task = { attempt = tonumber(attempt) or 0, payload = string.sub(field, last + 1) }
  task.lease, task.due = finite(lease), finite(due)
  if #attempt > 9 or (lease ~= '' and not task.lease) or (due ~= '' and not task.due) then return nil end
  return task
end

-- Decodes the field of a task that is in the queue. A dead letter there was put
-- back by a foreign producer's plain ZADD, and starts anew.
local function live(field)
  local task = decode(field)
  if task and task.dead then
    return { attempt = 0, payload = task.payload, revived = true }
  end
  return task
end

-- Writes a task's field, or removes it where a plain task needs none.
local function store(id, attempt, lease, due, payload)
  if attempt == 0 and payload == '' and not lease and not due then
    redis.call('HDEL', tasks, id)
    return
  end
  redis.call('HSET', tasks, id, string.format('%s:%s:%s:', attempt > 0 and string.format('%.0f', attempt) or '',
    lease and text(lease) or '', due and text(due) or '') .. payload)
end

local function leased(task, score)
  return score > now and task.lease == score
end

-- Once nobody holds a lease any more, a version that waited takes over. The
-- result is the task as it stands, and its score.
local function settle(task, score)
  if task.due and not leased(task, score) then
    return { attempt = 0, payload = task.payload }, task.due
  end
  return task, score
end

-- Puts a task at a new score. The ZREM is what lets it through on a full server.
local function move(id, score)
  redis.call('ZREM', queue, id)
  redis.call('ZADD', queue, text(score), id)
end

-- The task that a receipt is good for, or nil; false for a field that is not
-- ours. The receipt is the score, or that of a version that has taken over since.
local function match(score, field, receipt)
  score = finite(score)
  if not score then return nil end
  local task = live(field)
  if score == receipt then return task or false end
  if task and task.due then
    task, score = settle(task, score)
    if score == receipt then return task end
  end
end

local function held(id, receipt)
  local score = redis.call('ZSCORE', queue, id)
  if score then return match(score, redis.call('HGET', tasks, id), receipt) end
end

-- Reads the fields of ids, in order: returns a function that gives the i-th one.
-- It asks for more and more at a time, as long as they are small.
local function reader(ids)
  local read, before, n = {}, 0, 4
  return function(i)
    if i - before > #read then
      before, read = i - 1, redis.call('HMGET', tasks, unpack(ids, i, math.min(i + n - 1, #ids)))
      local largest = 1
      for _, field in ipairs(read) do largest = math.max(largest, field and #field or 0) end
      n = math.max(1, math.min(2 * n, math.floor(1048576 / largest)))
    end
    return read[i - before]
  end
end

-- Takes a dead letter that a foreign producer had put back off their list.
local function unbury(id, task)
  if task and task.revived then redis.call('ZREM', KEYS[3], id) end
end

-- Puts a task among the dead letters. The ZREM lets it through on a full server.
local function bury(id, attempt, reason, payload)
  redis.call('ZREM', queue, id)
  redis.call('ZADD', KEYS[3], text(now), id)
  redis.call('HSET', tasks, id, string.format('%.0f:dead:%d:', attempt, #reason) .. reason .. payload)
end

-- Ends a hold: the version that waited takes over, else the task is due again
-- at score. Returns its new score.
local function giveback(id, task, attempt, score)
  if task.due then
    attempt, score = 0, task.due
  end
  move(id, score)
  store(id, attempt, nil, nil, task.payload)
  unbury(id, task)
  return score
end

-- Tells waiters of a new head, if the earliest score just written is one, or was
-- until the same script moved it on.
-- A hint: where it or PUBLISH is denied, waiters look by themselves.
local function wake(channel, score)
  local head = score and finite(redis.pcall('ZRANGE', queue, 0, 0, 'WITHSCORES')[2])
  if head and head >= score then redis.pcall('PUBLISH', channel, '') end
end
