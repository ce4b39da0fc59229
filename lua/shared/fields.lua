-- DEFINES needAll, live, fieldOf, store, leased, unlike, resolve, stateOf, shownScore, move, match, held
-- DEFINES staleOrGone, unbury, buryAll, bury, giveback
-- USES unpack, rights, prelude, failure, state, groups, leases
-- For the scripts that read or write state fields.
--   KEYS[5] the leased tasks: zset, id -> lease end, the one in the state field. What has passed does not
--   count. A foreign client that writes only KEYS[1] leaves an entry here, which counts until then.

-- Checks the commands that a change of a task may need after the ZREM that it begins with.
local function needAll()
  need('ZADD', KEYS[1])
  need('HSET', KEYS[4])
  need('HDEL', KEYS[4])
end

-- Decodes the state field of a task that is in the queue. If it is a dead letter's, a foreign
-- producer's plain ZADD has put the task back: it starts again with no attempts.
local function live(field)
  local task = decode(field)
  if task and task.dead then
    return { attempt = 0, unseen = 0, revived = true, holds = task.holds }
  end
  return task
end

-- Returns the state field of a task with the given attempts and waiting version, nil if it has none. Other
-- fields of task: lease, token and claimant, which are written if keep is true; unseen, and holds.
local function fieldOf(task, attempt, due, keep)
  local lease = keep and task.lease
  if attempt == 0 and (task.unseen or 0) == 0 and not lease and not due and not task.holds then return nil end
  if lease then
    lease = text(lease) .. (task.token ~= lease and '/' .. text(task.token) or '')
  end
  return (task.holds or '') .. encode(attempt, task.unseen or 0, lease or '', due and text(due) or '', keep and task.claimant or '')
end

-- Writes the state field of a task, with what fieldOf takes.
local function store(id, task, attempt, due, keep)
  local field = fieldOf(task, attempt, due, keep)
  if field then redis.call('HSET', KEYS[4], id, field) else redis.call('HDEL', KEYS[4], id) end
end

-- Says whether a task with this score is leased now. Only for what resolve has returned.
local function leased(task, score)
  return score > now and task.lease == score
end

-- Returns a due time that is no receipt of the version before (its score or token), nor of
-- those before that one which had the same due time: an old receipt must not be good for a new
-- version. So up to a hundred versions for the same time count up by microseconds.
local function unlike(due, score, token)
  for _ = 1, 2 do
    if score and due <= score and score - due < 0.0001 then due = score + 0.000001 end
    if token and due <= token and token - due < 0.0001 then due = token + 0.000001 end
  end
  return due
end

-- Returns the task as it is now, and its score. A foreign producer's ZADD may have moved a
-- task with a lease: as long as the lease lasts, that is a version which waits. When the
-- lease has ended, the waiting version has taken over.
local function resolve(task, score)
  local due = task.due
  if task.lease and task.lease ~= score then due, task.moved = score, true end
  if not due then return task, score end
  if task.lease and task.lease > now then
    task.due = due
    return task, task.lease
  end
  return { attempt = 0, unseen = 0, isAnew = true, holds = task.holds }, unlike(due, task.lease, task.token)
end

-- Returns the state of a task that is in the queue: 1 scheduled   2 due   3 leased. For a
-- malformed entry, task is nil or score is not finite.
local function stateOf(task, score)
  score = finite(score) or (string.sub(score, 1, 1) == '-' and 0 or math.huge)
  if task then task, score = resolve(task, score) end
  if task and leased(task, score) then return 3 end
  return score > now and 1 or 2
end

-- Returns the score with which a task in a state is read. score is that of its set; a waiting task has none.
local function shownScore(state, field, score)
  if state == 6 then return waitsUntil(field) end
  local task
  score = finite(score)
  if state < 4 and live(field) and score then task, score = resolve(live(field), score) end
  return score
end

-- Gives a task a new score. After the ZREM a full server accepts the ZADD.
local function move(id, score)
  redis.call('ZREM', KEYS[1], id)
  redis.call('ZADD', KEYS[1], text(score), id)
end

-- Returns the task if the receipt is valid for it: the receipt is its score, or the token of
-- its last claim. nil if the receipt is stale; false for a state field not written by this library.
-- A receipt stays valid after the lease's end, until another claim or a version has taken over.
local function match(score, field, receipt)
  score = finite(score)
  if not score then return nil end
  local task = live(field)
  if not task then
    if score == receipt then return false end
    return nil
  end
  if task.lease ~= score or receipt ~= score and receipt ~= task.token then
    task, score = resolve(task, score)
    if receipt ~= score and not (task.lease and receipt == task.token) then return nil end
  end
  return task
end

-- Reads a task and matches the receipt with it; returns what match does.
local function held(id, receipt)
  local score = redis.call('ZSCORE', KEYS[1], id)
  if score then return match(score, redis.call('HGET', KEYS[4], id), receipt) end
end

-- Returns what a script answers of a task whose receipt is stale: 2 if the ID is not in the
-- queue and no dead letter, else 0.
local function staleOrGone(id)
  if redis.call('ZSCORE', KEYS[1], id) or redis.call('ZSCORE', KEYS[3], id) then return 0 end
  return 2
end

-- Removes a task that a foreign producer has put back from the list of dead letters.
local function unbury(id, task)
  if task and task.revived then redis.call('ZREM', KEYS[3], id) end
end

-- Moves tasks, a thousand or so at most, to the dead letters: 250 at a time. After the ZREM a
-- full server accepts the ZADD. Returns how many.
local function buryAll(buried)
  local died = text(now)
  for from = 1, #buried, 250 do
    local ids, scores, fields, left = {}, {}, {}, {}
    for i = from, math.min(from + 249, #buried) do
      local task = buried[i]
      ids[#ids + 1] = task.id
      left[#left + 1] = { task.id, task.holds }
      scores[#scores + 1], scores[#scores + 2] = died, task.id
      fields[#fields + 1], fields[#fields + 2] = task.id, (task.holds or '') .. encodeDead(task.attempt, task.reason)
    end
    redis.call('ZREM', KEYS[1], unpack(ids))
    redis.call('ZADD', KEYS[3], unpack(scores))
    unlease(ids)
    redis.call('HSET', KEYS[4], unpack(fields))
    forgetErrors(ids)
    if KEYS[14] then leaveGroups(left) end
  end
  return #buried
end

local function bury(id, attempt, reason, holds)
  return buryAll({ { id = id, attempt = attempt, reason = reason, holds = holds } })
end

-- Ends a claim: the waiting version takes over, or the task is due again at score. Returns
-- its new score.
local function giveback(id, task, attempt, score)
  if task.due then
    attempt, score, task.unseen = 0, task.due, 0
  end
  if attempt == 0 and (task.isAnew or task.attempt > (task.lease and 1 or 0)) then forgetErrors({ id }) end
  score = unlike(score, task.lease, task.token)
  move(id, score)
  unlease({ id })
  store(id, task, attempt)
  unbury(id, task)
  local group = groupOf(task.holds)
  if group and attempt == 0 and (task.unseen or 0) == 0 and not task.due then redis.call('HSET', KEYS[4], id, task.holds .. '0::') end -- a worker has had it: it keeps its place
  if group and task.due and KEYS[14] then fillGroup(group) end -- the version may be due later than one that waits
  return score
end
