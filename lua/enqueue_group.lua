-- Adds tasks of groups, in the order given: each is in play at once, or waits.
-- KEYS[3] the dead letters   KEYS[10] what is done, if the policy is once   KEYS[14] see groups.lua
-- ARGV as of enqueue.lua; of each group of its arguments, before the IDs: the group of the tasks
-- RETURNS what enqueue.lua does; 8 there is a task of that ID in no group, or in another one: nothing changed
-- USES unpack, prelude, new, wake, tasks, failure, once, groups, fields, put, state
-- RETRY never: as of enqueue.lua.
redis.call('HLEN', KEYS[2]) -- check the types before the first write
redis.call('ZCARD', KEYS[3]); redis.call('ZCARD', KEYS[14])
local scores, fields = redis.call('ZMSCORE', KEYS[1], unpack(ids)), redis.call('HMGET', KEYS[4], unpack(ids))
local done = within and redis.call('ZMSCORE', KEYS[10], unpack(ids)) or {}
needAll()
needGroups()

-- Clears what is left of a dead letter, or of a task that a foreign consumer has removed.
local function forget(id, field)
  leaveGroup(id, field)
  redis.call('ZREM', KEYS[3], id)
  redis.call('ZREM', KEYS[5], id)
  forgetErrors({ id })
end

-- Adds or updates a task with the given score and state field, nil or false if it has none. Returns the outcome.
local function enqueueIn(group, id, due, payload, score, field, finished)
  local holds, at = '@' .. #group .. ':' .. group, waitsUntil(field)
  local other = holdsOf(field)
  if other ~= holds and (score or at or other and string.byte(other, 1) == 42) then return 8 end
  if score then
    local outcome = enqueue(id, due, payload, score, field, holds)
    if outcome == 2 then fillGroup(group) end
    return outcome
  end
  if at and not supersedes(due, at) then return 3 end
  if not at and isDone(id, score, field, finished) then return 5 end
  if not at and field then forget(id, field) end
  if at then moveInGroup(group, id, at, policy == 'keepdue' and math.min(due, at) or due) else enterGroup(group, due, id) end
  setPayload(id, payload)
  return at and 2 or 1
end

local outcomes, known = { text(base + #ids * 0.000001) }, {}
for _, of in ipairs(extras) do
  for i = of.from, of.to do
    local id = ids[i]
    local score, field = scores[i], fields[i]
    if known[id] or hasPromoted then score, field = redis.call('ZSCORE', KEYS[1], id), redis.call('HGET', KEYS[4], id) end
    known[id], outcomes[i + 1] = true, enqueueIn(of[1], id, tonumber(entries[2 * i - 1]), payloads[i] or '', score, field, done[i])
  end
end
wake(earlier(first, earliestPromoted))
return outcomes
