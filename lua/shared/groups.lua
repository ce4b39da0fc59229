-- DEFINES groupOf, waitsUntil, needGroups, moveInGroup, fillGroup, enterGroup, leaveGroup, sweepGroups, hasPromoted, earliestPromoted, earlier
-- USES unpack, rights, prelude, state
-- For the scripts that enqueue, move or end tasks of a group, if they are given the groups. Of a group some tasks are in play: they are in the
-- queue as other tasks are. The others wait: they have a payload, and '<what stands in front>::<due>' as their state field.
--   KEYS[8] the queue's pause and limits
--   KEYS[14] the groups: zset, all scores 0; '!<group> NUL <id>' of a task in play, '~<group> NUL <due><id>' of one that waits, with when it is due
--   as 16 digits of microseconds

-- Returns the group of a task by what stands in front of its state field; nil if it is in none.
local function groupOf(holds) return holds and string.match(holds, '^@%d+:(.*)$') end

-- Returns when a task that waits in its group is due, by its state field; nil if it does not wait.
local function waitsUntil(field)
  local holds = holdsOf(field)
  return groupOf(holds) and finite(string.match(string.sub(field, #holds + 1), '^::([%d.]+)$')) or nil
end

-- Returns the lesser of two numbers that may be nil.
local function earlier(a, b) return a and b and math.min(a, b) or a or b end

-- Checks what the functions below need, before the first write of a script. Does nothing without the groups.
local function needGroups()
  if not KEYS[14] then return end
  need('ZADD', KEYS[14])
  need('ZREM', KEYS[14])
  need('ZRANGEBYLEX', KEYS[14])
  need('ZLEXCOUNT', KEYS[14])
  need('HGET', KEYS[4])
  need('HMGET', KEYS[4])
  need('ZREM', KEYS[1])
end

local fillGroup, enterGroup, moveInGroup, leaveGroup, sweepGroups, hasPromoted, earliestPromoted

if KEYS[14] then
  local most

  -- Returns how many tasks of a group may be in play.
  local function perGroup()
    most = most or tonumber(string.match(redis.call('GET', KEYS[8]) or '', '^%d+ %d+ %d+ %d+ %d+ (%d+) %d+$') or 1)
    return most
  end

  local function inPlay(group, id) return '!' .. group .. '\0' .. id end

  local function waiting(group, due, id) return '~' .. group .. '\0' .. string.format('%016.0f', due * 1000000) .. id end

  -- Returns members of a group that begin with a sign, n at most.
  local function membersOf(sign, group, n)
    return redis.call('ZRANGEBYLEX', KEYS[14], '[' .. sign .. group .. '\0', '(' .. sign .. group .. '\1', 'LIMIT', '0', n)
  end

  -- Returns when the first that waits is due, its ID and its member.
  local function firstWaiting(group)
    local member = membersOf('~', group, '1')[1]
    if member then return tonumber(string.sub(member, #group + 3, #group + 18)) / 1000000, string.sub(member, #group + 19), member end
  end

  local function play(group, due, id)
    redis.call('ZADD', KEYS[14], '0', inPlay(group, id))
    redis.call('ZADD', KEYS[1], text(due), id)
    redis.call('HSET', KEYS[4], id, '@' .. #group .. ':' .. group .. '::')
    earliestPromoted = math.min(earliestPromoted or math.huge, due)
  end

  -- Puts the first that waits into play. Returns whether there was one. Of what is not there, or has been put into the queue by a foreign
  -- producer, only the member is left.
  local function promote(group)
    for _ = 1, 100 do
      local due, id, member = firstWaiting(group)
      if not due then return false end
      redis.call('ZREM', KEYS[14], member) -- after this a full server accepts the rest
      if waitsUntil(redis.call('HGET', KEYS[4], id)) then
        play(group, due, id)
        hasPromoted = true
        return true
      end
    end
  end

  -- Has a task wait.
  local function await(group, due, id)
    redis.call('ZADD', KEYS[14], '0', waiting(group, due, id))
    redis.call('HSET', KEYS[4], id, '@' .. #group .. ':' .. group .. '::' .. text(due))
  end

  local function countInPlay(group)
    return redis.call('ZLEXCOUNT', KEYS[14], '[!' .. group .. '\0', '(!' .. group .. '\1')
  end

  -- Takes tasks that a foreign consumer has removed out of play, puts those that wait into free places, and the first of them into the place of
  -- a later one that no worker has had. Of many in play it looks at a hundred.
  function fillGroup(group)
    local members, ids, scores, fields, last, at = membersOf('!', group, '100'), {}, {}, {}, nil, nil
    for i, member in ipairs(members) do ids[i] = string.sub(member, #group + 3) end
    if #ids > 0 then scores, fields = redis.call('ZMSCORE', KEYS[1], unpack(ids)), redis.call('HMGET', KEYS[4], unpack(ids)) end
    for i, id in ipairs(ids) do
      local score = finite(scores[i])
      if not scores[i] then redis.call('ZREM', KEYS[14], members[i]) end
      if score and fields[i] == '@' .. #group .. ':' .. group .. '::' and score > (at or -math.huge) then last, at = id, score end
    end
    local count = #ids == 0 and 0 or countInPlay(group)
    while count < perGroup() and promote(group) do count = count + 1 end
    if last and (firstWaiting(group) or math.huge) < at then
      redis.call('ZREM', KEYS[1], last)
      redis.call('ZREM', KEYS[14], inPlay(group, last))
      await(group, at, last)
      promote(group)
    end
  end

  -- Puts a task that is not there into its group: into play, or behind others.
  function enterGroup(group, due, id)
    local isFree = countInPlay(group) < perGroup()
    if isFree and not firstWaiting(group) then return play(group, due, id) end
    await(group, due, id)
    local _, first = firstWaiting(group)
    if isFree or first == id then fillGroup(group) end
  end

  -- Gives a task that waits since its due time was at another one.
  function moveInGroup(group, id, at, due)
    redis.call('ZREM', KEYS[14], waiting(group, at, id))
    await(group, due, id)
    fillGroup(group)
  end

  -- Takes a task that has ended, or is a dead letter now, out of its group, by its state field as it was.
  function leaveGroup(id, field)
    local group, due = groupOf(holdsOf(field)), waitsUntil(field)
    if not group then return end
    if due then redis.call('ZREM', KEYS[14], waiting(group, due, id)) end
    if redis.call('ZREM', KEYS[14], inPlay(group, id)) == 1 then fillGroup(group) end
  end

  -- Sees to groups of which a foreign consumer has removed a task in play, or which may have more in play than before: of a thousand in play, behind
  -- those of the call before. KEYS[9] keeps how far it has come.
  function sweepGroups()
    if redis.call('ZCARD', KEYS[14]) == 0 then return end
    local found = redis.call('ZRANGEBYLEX', KEYS[14], '(' .. (redis.call('HGET', KEYS[9], 'swept') or '!'), '("', 'LIMIT', '0', '1000')
    local ids, groups = {}, {}
    for i, member in ipairs(found) do
      local nul = string.find(member, '\0', 1, true)
      groups[i], ids[i] = string.sub(member, 2, nul - 1), string.sub(member, nul + 1)
    end
    for from = 1, #ids, 250 do
      local scores = redis.call('ZMSCORE', KEYS[1], unpack(ids, from, math.min(from + 249, #ids)))
      for i = from, math.min(from + 249, #ids) do
        if not scores[i - from + 1] or perGroup() > 1 and groups[i] ~= groups[i - 1] then fillGroup(groups[i]) end
      end
    end
    redis.call('HSET', KEYS[9], 'swept', #found == 1000 and found[1000] or '!')
  end
end
