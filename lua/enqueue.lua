-- Puts tasks in, in the order given.
-- KEYS[3] the dead letters
-- ARGV[1] policy: replace, keep, earliest or latest   ARGV[2] wake channel
-- then three per task: id, due ('+' seconds from now or '@' Unix seconds), payload
-- RETURNS one number per task: 1 added   2 updated   3 kept   4 deferred
-- Not repeated by itself: a task may be taken and finished between two runs.
local policy, outcomes, first = ARGV[1], {}, nil
redis.call('ZCARD', KEYS[3]) -- its type, before anything is written

local function supersedes(due, other)
  return policy == 'replace' or (policy == 'earliest' and due < other) or (policy == 'latest' and due > other)
end

local function put(id, due, payload, known)
  redis.call('ZADD', queue, text(due), id) -- first, so that a full server refuses before anything is written
  if known or payload ~= '' then store(id, 0, nil, nil, payload) end
  if not first or due < first then first = due end
end

local function enqueue(id, due, payload)
  local score = finite(redis.call('ZSCORE', queue, id))
  local field = redis.call('HGET', tasks, id)
  local task = decode(field) or { attempt = 0, payload = '' }
  if not score then
    put(id, due, payload, field)
    if task.dead then redis.call('ZREM', KEYS[3], id) end
    return 1
  end
  if task.dead then -- put back by a foreign producer
    redis.call('ZREM', KEYS[3], id)
    task = { attempt = 0, payload = task.payload }
  end
  task, score = settle(task, score)
  if leased(task, score) then
    if policy == 'keep' or (task.due and not supersedes(due, task.due)) then return 3 end
    store(id, task.attempt, task.lease, due, payload)
    return 4
  end
  if not supersedes(due, score) then return 3 end
  put(id, due, payload, field)
  return 2
end

for i = 3, #ARGV, 3 do
  local due = tonumber(string.sub(ARGV[i + 1], 2))
  if string.sub(ARGV[i + 1], 1, 1) == '+' then due = now + due end
  outcomes[#outcomes + 1] = enqueue(ARGV[i], due, ARGV[i + 2])
end
wake(ARGV[2], first)
return outcomes
