-- Extends claims: each task is leased for at least ARGV[1] from now. The receipts stay as they are.
-- KEYS[3] the dead letters   KEYS[8] the queue's pause and limits: a lease that has run out has its place no more, and needs another one   KEYS[9] its counts
-- ARGV[1] lease in seconds, then, for tasks that have the same receipt: it, their number, their IDs; at most 250 tasks
-- RETURNS one number per task: 1 done   0 stale   2 gone   -1 a state field not written by this library; of these
--         three, nothing changed. None if all are done
-- USES unpack, rights, prelude, receipts, limits, fields, leases
-- RETRY idempotent, in any order: it never shortens a lease, and does nothing once the claim has ended.
redis.call('ZCARD', KEYS[3]) -- check the types before the first write
redis.call('ZCARD', KEYS[5])
local lease, ids, groups = now + tonumber(ARGV[1]), byReceipt(2)

-- Returns the score and the field of a task that is extended, and whether its lease has run out; false if its receipt is stale; or another answer.
local function extended(score, field, receipt)
  local task = match(score, field, receipt)
  if not task then return task == false and -1 end
  if not task.lease then return 0 end -- it was never claimed
  local ranOut = task.lease <= now
  task.lease = math.max(lease, task.lease) -- this run may be a late copy, and the client has extended it since
  return { text(task.lease), fieldOf(task, task.attempt, task.due, true), ranOut }
end

local scores, fields, answers, failed, moved, written, anew = redis.call('ZMSCORE', KEYS[1], unpack(ids)), redis.call('HMGET', KEYS[4], unpack(ids)), {}, false, {}, {}, {}
local places -- for leases that have run out, once one has
for _, group in ipairs(groups) do
  local known = {} -- what tasks of one claim have is mostly equal: it is worked out once
  for i = group.first, group.last do
    local id, has = ids[i], scores[i] and scores[i] .. (fields[i] and ' ' .. fields[i] or '') or ''
    if known[has] == nil then known[has] = extended(scores[i], fields[i], tonumber(group.receipt)) end
    local to = known[has]
    if type(to) == 'table' and to[3] then
      if not places then readLimits() end
      places = (places or limits and limits.allowed(0) and limits.places or math.huge) - 1
      if places < 0 then to = 0 else anew[#anew + 1] = id end
    end
    if type(to) == 'table' then
      answers[i], moved[#moved + 1], moved[#moved + 2], written[#written + 1], written[#written + 2] = 1, to[1], id, id, to[2]
    else
      answers[i], failed = to or staleOrGone(id), true
    end
  end
end
if #moved == 0 then return answers end
need('ZADD', KEYS[1])
need('HSET', KEYS[4])
redis.call('ZREM', KEYS[1], moved[2]) -- after this a full server accepts the rest
redis.call('ZADD', KEYS[1], unpack(moved))
if #anew > 0 then unlease(anew) end
redis.call('ZADD', KEYS[5], unpack(moved))
redis.call('HSET', KEYS[4], unpack(written))
return failed and answers or {}
