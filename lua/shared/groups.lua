-- DEFINES groupOf, waitsUntil, needGroups, placesIn, perGroup, joins, moveInGroup, fillGroup, enterGroup, leaveGroups, sweepGroups
-- DEFINES hasPromoted, earliestPromoted, earlier
-- USES unpack, rights, prelude, state
-- For the scripts that enqueue, move or end tasks of a group, if they are given the groups. Of a group some tasks are in play: they are in the
-- queue as other tasks are. The others wait: they have a payload, and '<what stands in front>::<due>' as their state field.
--   KEYS[8] the queue's pause and limits
--   KEYS[14] the groups: zset, all scores 0; '!<group> NUL <id>' of a task in play, '~<group> NUL <due><id>' of one that waits, with when it is due
--   as 16 digits of microseconds

-- Returns the group of a task by what stands in front of its state field; nil if it is in none.
local function groupOf(holds)
  local _, _, rest = unitsOf(holds)
  return rest and string.match(rest, '^@%d+:(.*)$')
end

-- Returns when a task that waits in its group is due, by its state field; nil if it does not wait.
local function waitsUntil(field)
  local holds = holdsOf(field)
  if not groupOf(holds) or string.byte(field, #holds + 1) ~= 58 then return nil end -- one in play has ':' there only if it was never claimed
  return finite(string.match(field, '^::([%d.e+-]+)$', #holds + 1))
end

-- Returns the lesser of two numbers that may be nil.
local function earlier(a, b) return a and b and math.min(a, b) or a or b end

local perGroup, placesIn, joins, fillGroup, enterGroup, moveInGroup, leaveGroups, sweepGroups, hasPromoted, earliestPromoted
local isChecked = false

-- Checks what the functions below need, before the first write of a script. Does nothing without the groups.
local function needGroups()
  if isChecked or not KEYS[14] then return end
  redis.call('ZCARD', KEYS[14])
  perGroup() -- it is read here: a later read may be denied, or find a key of another type
  need('ZADD', KEYS[14])
  need('ZREM', KEYS[14])
  need('ZRANGEBYLEX', KEYS[14])
  need('ZLEXCOUNT', KEYS[14])
  need('HGET', KEYS[4])
  need('HMGET', KEYS[4])
  need('HSET', KEYS[4])
  need('ZADD', KEYS[1])
  need('ZMSCORE', KEYS[1])
  need('ZREM', KEYS[1])
  isChecked = true
end

if KEYS[14] then
  local most
  local spare = 250 -- how many tasks a script puts into play at most, besides the first of each group and what it frees: a larger limit lets thousands in

  -- Returns how many tasks of a group may be in play.
  function perGroup()
    most = most or tonumber(string.match(redis.call('GET', KEYS[8]) or '', '^%d+ %d+ %d+ %d+ %d+ (%d+) %d+$') or 1)
    return most
  end

  local function inPlay(group, id) return '!' .. group .. '\0' .. id end

  local function waiting(group, due, id) return '~' .. group .. '\0' .. string.format('%016.0f', due * 1000000) .. id end

  local function micros(due) return math.floor(due * 1000000 + 0.5) end

  -- Returns the member and the state field of a task that is put into its group: into play, or to wait. holds is what stands in front of the field.
  function joins(group, due, id, holds, plays)
    if not plays then return waiting(group, due, id), holds .. '::' .. text(due) end
    earliestPromoted = math.min(earliestPromoted or math.huge, due)
    return inPlay(group, id), holds .. '::'
  end

  local function put(group, due, id, holds, plays)
    local member, field = joins(group, due, id, holds, plays)
    redis.call('ZADD', KEYS[14], '0', member)
    if plays then redis.call('ZADD', KEYS[1], text(due), id) end
    redis.call('HSET', KEYS[4], id, field)
  end

  -- Returns members of a group that begin with a sign, n at most.
  local function membersOf(sign, group, n)
    return redis.call('ZRANGEBYLEX', KEYS[14], '[' .. sign .. group .. '\0', '(' .. sign .. group .. '\1', 'LIMIT', '0', n)
  end

  -- Returns when the first that waits is due, its ID and its member.
  local function firstWaiting(group)
    local member = membersOf('~', group, '1')[1]
    if member then return tonumber(string.sub(member, #group + 3, #group + 18)) / 1000000, string.sub(member, #group + 19), member end
  end

  -- Returns how many tasks of a group are in play, and when the first that waits is due, if one does. None does where none is in play.
  function placesIn(group)
    local count = redis.call('ZLEXCOUNT', KEYS[14], '[!' .. group .. '\0', '(!' .. group .. '\1')
    return count, count > 0 and firstWaiting(group) or nil
  end

  -- Puts the first that waits into play. Returns whether there was one. Of what is not there, or was put into the queue by a foreign producer
  -- and perhaps waits again since, only the member is left.
  local function promote(group)
    for _ = 1, 100 do
      local due, id, member = firstWaiting(group)
      if not due then return false end
      redis.call('ZREM', KEYS[14], member) -- after this a full server accepts the rest
      local field = redis.call('HGET', KEYS[4], id)
      local at = waitsUntil(field)
      if at and waiting(groupOf(holdsOf(field)), at, id) == member then
        put(group, at, id, holdsOf(field), true)
        hasPromoted = true
        return true
      end
    end
  end

  -- If tasks of a group wait: takes those that a foreign consumer has removed out of play, puts the first that wait into free places, and the
  -- first of them into the place of a later one that no worker has had. Of many in play it looks at a hundred. What takes a place that this script
  -- has freed, of which there are so many, takes nothing of what is spare.
  function fillGroup(group, freed)
    if not firstWaiting(group) then return end
    local members, ids, scores, fields, last, at = membersOf('!', group, '100'), {}, {}, {}, nil, nil
    for i, member in ipairs(members) do ids[i] = string.sub(member, #group + 3) end
    if #ids > 0 then scores, fields = redis.call('ZMSCORE', KEYS[1], unpack(ids)), redis.call('HMGET', KEYS[4], unpack(ids)) end
    for i, id in ipairs(ids) do
      local score, holds = finite(scores[i]), holdsOf(fields[i])
      local isHere = scores[i] and groupOf(holds) == group -- else it is gone, or is elsewhere since
      if not isHere then redis.call('ZREM', KEYS[14], members[i]) end
      if score and isHere and fields[i] == holds .. '::' and (not at or micros(score) >= micros(at)) then last, at = i, score end
    end
    local count, free = #ids == 0 and 0 or placesIn(group), freed or 0
    while count < perGroup() and (count == 0 or free > 0 or spare > 0) and promote(group) do
      count = count + 1
      if free > 0 then free = free - 1 else spare = spare - 1 end
    end
    if last and micros(firstWaiting(group) or math.huge) < micros(at) then
      redis.call('ZREM', KEYS[1], ids[last])
      redis.call('ZREM', KEYS[14], members[last])
      put(group, at, ids[last], holdsOf(fields[last]), false)
      promote(group)
    end
  end

  -- Puts a task that is not there into its group: into play, or behind others.
  function enterGroup(group, due, id, holds)
    local count, first = placesIn(group)
    local plays = count < perGroup() and not first
    put(group, due, id, holds, plays)
    if not plays and (count < perGroup() or due <= (first or due)) then fillGroup(group) end
  end

  -- Gives a task that waits since its due time was at another one.
  function moveInGroup(group, id, at, due, holds)
    redis.call('ZREM', KEYS[14], waiting(group, at, id))
    put(group, due, id, holds, false)
    fillGroup(group)
  end

  -- Takes tasks that have ended, or are dead letters now, 250 at most, out of their groups. Each is { id, state field as it was }.
  function leaveGroups(tasks)
    local members, left, freed = {}, {}, {}
    for _, task in ipairs(tasks) do
      local id, group = task[1], groupOf(holdsOf(task[2]))
      if group then
        local due = waitsUntil(task[2])
        members[#members + 1] = due and waiting(group, due, id) or inPlay(group, id)
        if not freed[group] then left[#left + 1] = group end
        freed[group] = (freed[group] or 0) + (due and 0 or 1)
      end
    end
    if #members == 0 or redis.call('ZREM', KEYS[14], unpack(members)) == 0 then return end
    if #left > 1 and #redis.call('ZRANGEBYLEX', KEYS[14], '[~', '(\127', 'LIMIT', '0', '1') == 0 then return end -- no task of any group waits
    for _, group in ipairs(left) do fillGroup(group, freed[group]) end
  end

  -- Sees to groups of which a foreign consumer has removed a task in play, or which may have more in play than before: of a thousand in play, behind
  -- those of the call before. KEYS[9] keeps how far it has come.
  function sweepGroups()
    if redis.call('ZCARD', KEYS[14]) == 0 or not pcall(needGroups) then return end -- it may be denied
    local found = redis.call('ZRANGEBYLEX', KEYS[14], '(' .. (redis.call('HGET', KEYS[9], 'swept') or '!'), '("', 'LIMIT', '0', '1000')
    local ids, groups = {}, {}
    for i, member in ipairs(found) do
      local nul = string.find(member, '\0', 1, true)
      groups[i], ids[i] = string.sub(member, 2, nul - 1), string.sub(member, nul + 1)
    end
    local seen = 0
    for from = 1, #ids, 250 do
      if spare <= 0 then break end
      local to = math.min(from + 249, #ids)
      local scores, fields = redis.call('ZMSCORE', KEYS[1], unpack(ids, from, to)), redis.call('HMGET', KEYS[4], unpack(ids, from, to))
      for i = from, to do
        local isGone = not scores[i - from + 1] or groupOf(holdsOf(fields[i - from + 1])) ~= groups[i] -- or is elsewhere since
        if isGone then redis.call('ZREM', KEYS[14], found[i]) end
        if isGone or perGroup() > 1 and groups[i] ~= groups[i - 1] then fillGroup(groups[i]) end
      end
      seen = to
    end
    redis.call('HSET', KEYS[9], 'swept', (seen < #found or seen == 1000) and found[seen] or '!')
  end
end
