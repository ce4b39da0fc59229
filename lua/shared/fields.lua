-- Second prelude, of the scripts that read or write fields.
-- A field is '<attempt>:<lease>:<deferred>:<payload>'; each part may be empty. A lease is
-- '<its end>', or '<its end>/<token>' once it has been extended. The token is the score with
-- which the task was claimed: the receipt of the whole attempt.
-- A dead letter's field is '<attempt>:dead:<bytes in reason>:<reason><payload>'.
-- A task without payload that was never claimed has no field.

-- Checks the commands that a change of a task may need after the ZREM that it begins with.
local function needAll()
  need('ZADD', queue)
  need('HSET', tasks)
  need('HDEL', tasks)
end

-- Decodes a field; nil for one not written by this library.
local function decode(field)
  if not field then return { attempt = 0, payload = '' } end
  local _, last, attempt, lease, token, due = string.find(field, '^(%d*):([%d.e+-]*)/?([%d.e+-]*):([%d.e+-]*):')
  if not last then
    _, last, attempt, due = string.find(field, '^(%d+):dead:(%d+):')
    if not last or #attempt > 9 or #due > 9 then return nil end
    due = last + tonumber(due)
    return { attempt = tonumber(attempt), dead = true,
      reason = string.sub(field, last + 1, due), payload = string.sub(field, due + 1) }
  end
  local task = { attempt = tonumber(attempt) or 0, payload = string.sub(field, last + 1) }
  task.lease, task.due = finite(lease), finite(due)
  task.token = finite(token) or task.lease
  if #attempt > 9 or (lease ~= '' and not task.lease) or (due ~= '' and not task.due) then return nil end
  return task
end

-- Decodes the field of a task that is in the queue. If it is a dead letter's, a foreign
-- producer's plain ZADD has put the task back: it starts again with no attempts.
local function live(field)
  local task = decode(field)
  if task and task.dead then
    return { attempt = 0, payload = task.payload, revived = true }
  end
  return task
end

-- Writes a task's field, or removes the field of a task that needs none.
local function store(id, attempt, lease, due, payload, token)
  if attempt == 0 and payload == '' and not lease and not due then
    redis.call('HDEL', tasks, id)
    return
  end
  redis.call('HSET', tasks, id, string.format('%s:%s:%s:', attempt > 0 and string.format('%.0f', attempt) or '',
    lease and (text(lease) .. (token ~= lease and '/' .. text(token) or '')) or '', due and text(due) or '') .. payload)
end

-- Says whether a task with this score is leased now.
local function leased(task, score)
  return score > now and task.lease == score
end

-- Returns the task as it is now, and its score: if its lease has ended, its waiting version
-- has taken over.
local function resolve(task, score)
  if task.due and not leased(task, score) then
    return { attempt = 0, payload = task.payload }, task.due
  end
  return task, score
end

-- Gives a task a new score. After the ZREM a full server accepts the ZADD.
local function move(id, score)
  redis.call('ZREM', queue, id)
  redis.call('ZADD', queue, text(score), id)
end

-- Returns the task if the receipt is valid for it: the receipt is its score, or the token of
-- its last claim, or the score of its waiting version that has taken over since. nil if the
-- receipt is stale; false for a field not written by this library.
local function match(score, field, receipt)
  score = finite(score)
  if not score then return nil end
  local task = live(field)
  if score == receipt or task and task.lease == score and task.token == receipt then
    return task or false
  end
  if task and task.due then
    task, score = resolve(task, score)
    if score == receipt then return task end
  end
end

-- Reads a task and matches the receipt with it; returns what match does.
local function held(id, receipt)
  local score = redis.call('ZSCORE', queue, id)
  if score then return match(score, redis.call('HGET', tasks, id), receipt) end
end

-- Returns what a script answers of a task whose receipt is stale: 2 if the ID is not in the
-- queue and no dead letter, else 0.
local function staleOrGone(id)
  if redis.call('ZSCORE', queue, id) or redis.call('ZSCORE', KEYS[3], id) then return 0 end
  return 2
end

-- Returns a function that reads the i-th field of ids; it is called with i in ascending order.
-- It reads ahead, more fields at a time as long as they are small.
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

-- Removes a task that a foreign producer has put back from the list of dead letters.
local function unbury(id, task)
  if task and task.revived then redis.call('ZREM', KEYS[3], id) end
end

-- Moves a task to the dead letters. After the ZREM a full server accepts the ZADD.
local function bury(id, attempt, reason, payload)
  redis.call('ZREM', queue, id)
  redis.call('ZADD', KEYS[3], text(now), id)
  redis.call('HSET', tasks, id, string.format('%.0f:dead:%d:', attempt, #reason) .. reason .. payload)
end

-- Ends a claim: the waiting version takes over, or the task is due again at score. Returns
-- its new score.
local function giveback(id, task, attempt, score)
  if task.due then
    attempt, score = 0, task.due
  end
  move(id, score)
  store(id, attempt, nil, nil, task.payload)
  unbury(id, task)
  return score
end

-- Notifies waiters if score, the earliest that this script has written, is the queue's new
-- head, or was it until this same script gave that task a later one. Only a hint: if the server
-- denies ZRANGE or PUBLISH, waiters still poll.
local function wake(channel, score)
  local head = score and finite(redis.pcall('ZRANGE', queue, 0, 0, 'WITHSCORES')[2])
  if head and head >= score then redis.pcall('PUBLISH', channel, '') end
end
