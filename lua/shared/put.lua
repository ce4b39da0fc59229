-- DEFINES first, enqueue, setPayload, supersedes
-- USES rights, prelude, tasks, failure, state, fields, leases, once
-- For enqueue, with its arguments.
redis.call('ZCARD', KEYS[5]) -- check its type before the first write
if #ids > 1 then need('ZSCORE', KEYS[3]) end -- of a task behind another one: see isDead
local first

local function supersedes(due, other)
  return policy == 'replace' or policy == 'keepdue' or (policy == 'earliest' and due < other) or (policy == 'latest' and due > other)
end

local function setPayload(id, payload)
  if payload ~= '' then redis.call('HSET', KEYS[2], id, payload) else redis.call('HDEL', KEYS[2], id) end
end

local function put(id, due, payload, field, wasDead)
  redis.call('ZADD', KEYS[1], text(due), id) -- first, so that a full server rejects the task before anything is written
  if field then
    local holds = holdsOf(field) -- of a task that a foreign consumer has removed: the new one has its units
    if holds and not (wasDead and string.byte(holds, 1) == 64) then redis.call('HSET', KEYS[4], id, holds .. '::') else redis.call('HDEL', KEYS[4], id) end
    unlease({ id })
    forgetErrors({ id })
  end
  setPayload(id, payload)
  if not first or due < first then first = due end
end

-- Adds or updates a task with the given score and state field, nil or false if it has none. A task that holds units, or is in a group, is
-- kept, unless holds says that, or it is a dead letter without units.
-- Returns the outcome.
local function enqueue(id, due, payload, score, field, holds)
  score = finite(score)
  local task = decode(field) or { attempt = 0 }
  if task.holds and task.holds ~= holds and (score or task.due and not task.lease or isDead(id, field) and string.byte(task.holds, 1) == 42) then return 3 end
  if not score then
    put(id, due, payload, field, task.dead)
    if task.dead then redis.call('ZREM', KEYS[3], id) end
    return 1
  end
  if task.dead then -- put back by a foreign producer
    redis.call('ZREM', KEYS[3], id)
    task = { attempt = 0 }
  end
  local token = task.token
  task, score = resolve(task, score)
  if leased(task, score) then
    if policy == 'keep' or within or (task.due and not supersedes(due, task.due)) then return 3 end
    if policy == 'keepdue' and task.due then due = math.min(due, task.due) end
    if task.moved then redis.call('ZADD', KEYS[1], text(score), id) end
    store(id, task, task.attempt, due, true)
    setPayload(id, payload)
    return 4
  end
  if not supersedes(due, score) then return 3 end
  if policy == 'keepdue' then due = math.min(due, score) end
  put(id, unlike(due, score, token), payload, field)
  return 2
end
