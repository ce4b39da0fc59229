-- DEFINES nextAttempt, due, payloads
-- USES unpack, prelude, read, failure, tally, state, fields, groups
-- For the scripts that hand out due tasks.

-- Counts the delivery that a claim of a task begins. Returns its attempt, and how many
-- deliveries were not counted. One that ended with its lease, without a word of its holder, is
-- not counted, twice: perhaps the reply to that claim was lost, and no handler ever saw it.
local function nextAttempt(task)
  if task.unseen < 2 and task.attempt > 0 and task.lease and task.lease == task.token then
    return task.attempt, task.unseen + 1
  end
  return task.attempt + 1, task.unseen
end

-- Reads up to n due tasks, and changes nothing. Those with limit attempts (0
-- or nil for any number) are used up. To find n that are ready it reads up to about a thousand,
-- as long as their state fields have less than a megabyte. Returns:
--   1. the tasks that are ready to be claimed, without their payloads;
--   2. the ID of the first that it read, which gets another score or goes; nil if there is none;
--   3. whether there may be more due tasks;
--   4. a function that cleans up what it read besides: a leased task that a foreign producer
--      has moved gets its score back, and the new version waits; a waiting version, whose
--      lease has run out, moves to its own due time; a malformed entry, and a task whose
--      attempts are used up, moves to the dead letters. The caller
--      calls it after its own first write; it returns how many it has buried;
--   5. whether it has left such a task alone, since it is in a group, or holds units, and the script is not given the groups.
local function due(n, limit)
  local ready, moved, buried, revived, ids, size, any, leaves = {}, {}, {}, {}, {}, 0, nil, false

  local function add(list, task)
    if task.holds and list ~= ready and not KEYS[14] then
      leaves = true
    else
      any = any or task.id
      list[#list + 1] = task
    end
  end

  local function classify(id, field, written)
    local score, task = finite(written), live(field)
    if not score or not task or id == '' then
      return add(buried, { id = id, attempt = 0, reason = 'malformed', holds = holdsOf(field) })
    end
    if task.revived then revived[#revived + 1] = id end
    task, score = resolve(task, score)
    task.id, task.score = id, text(score)
    local list = score > now and moved or ready
    if list == ready and limit and limit > 0 and nextAttempt(task) > limit then
      task.reason, list = 'attempts used up', buried
    end
    add(list, task)
  end

  local function examine(found)
    local all = {}
    for i = 1, #found, 2 do all[#all + 1] = found[i] end
    local read = reader(fieldsOf, all, 16)
    for i, id in ipairs(all) do
      if #ready == n or size >= 1048576 then return end
      local field, score = read(i), found[2 * i]
      ids[#ids + 1], size = id, size + (field and #field or 0)
      if field or id == '' or string.sub(score, 1, 1) == '-' then
        classify(id, field, score)
      else -- a plain task: the most common and cheapest case
        add(ready, { id = id, score = score, attempt = 0, unseen = 0 })
      end
    end
  end

  local more
  repeat
    local before, count = #ids, #ids == 0 and n or 250
    local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now), 'WITHSCORES', 'LIMIT', string.format('%d', before), string.format('%d', count))
    examine(found)
    more = #found > 0 and (#found == 2 * count or #found > 2 * (#ids - before))
  until not more or #ready == n or #ids >= 1000 or size >= 1048576
  if #ids > #ready then -- for the clean-up
    needAll()
    needGroups()
  end
  return ready, any, more or leaves, function()
    for i = 1, #revived, 250 do redis.call('ZREM', KEYS[3], unpack(revived, i, math.min(i + 249, #revived))) end
    local anew = {}
    for _, list in ipairs({ ready, moved, buried }) do
      for _, task in ipairs(list) do
        if task.isAnew then anew[#anew + 1] = task.id end
      end
    end
    forgetErrors(anew)
    for _, task in ipairs(moved) do
      move(task.id, tonumber(task.score))
      store(task.id, task, task.attempt, task.due, true)
    end
    for i = 1, KEYS[14] and #moved or 0 do -- what is due later now may stand before one that waits
      local group = groupOf(moved[i].holds)
      if group then fillGroup(group) end
    end
    tally('buried', #buried)
    return buryAll(buried)
  end, leaves
end

-- Reads the payloads of the tasks that are to be handed out. Those for which there was no room
-- are taken off the list; says whether there were any.
local function payloads(list)
  local ids = {}
  for i, task in ipairs(list) do ids[i] = task.id end
  local read, cut = payloadsOf(ids)
  for i, task in ipairs(list) do
    task.payload = read[i]
    if i > #ids then list[i] = nil end
  end
  return cut
end
