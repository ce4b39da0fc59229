-- DEFINES add, flush, countPlays, updateInGroup
-- USES unpack, once, state, groups, fields, put, sale, rights
-- For enqueue_group.lua. What is written of new tasks of groups is written together.
need('HSET', KEYS[2])
need('HDEL', KEYS[2])
local left = redis.call('HLEN', KEYS[2]) > 0 -- perhaps payloads of the same IDs

local queued, members, states, stored, empty, plays = {}, {}, {}, {}, {}, 0
local places = {} -- of each group to which tasks were added: how many are in play, and when the first that waits is due

-- Writes what add has noted. It comes before whatever else reads or changes tasks of groups.
local function flush()
  places = {}
  if #members == 0 then return end
  if #queued > 0 then redis.call('ZADD', KEYS[1], unpack(queued)) end -- the first write: a full server rejects it
  redis.call('ZADD', KEYS[14], unpack(members))
  redis.call('HSET', KEYS[4], unpack(states))
  if #stored > 0 then redis.call('HSET', KEYS[2], unpack(stored)) end
  if #empty > 0 and left then redis.call('HDEL', KEYS[2], unpack(empty)) end
  queued, members, states, stored, empty = {}, {}, {}, {}, {}
end

-- Returns how many tasks were put into play at once.
local function countPlays() return plays end

-- Adds a task that is not there.
local function add(group, holds, due, score, id, payload)
  local place = places[group]
  if not place then
    local count, first = placesIn(group)
    place = { count = count, first = first }
    places[group] = place
  end
  local isFree, first = place.count < perGroup(), place.first
  if isFree == (first ~= nil) or first and due < first then -- perhaps it changes places with others
    flush()
    enterGroup(group, due, id, holds)
    return setPayload(id, payload)
  end
  local at = #members
  members[at + 1] = '0'
  members[at + 2], states[at + 2] = joins(group, due, id, holds, isFree)
  states[at + 1] = id
  if isFree then
    place.count, plays = place.count + 1, plays + 1
    queued[#queued + 1], queued[#queued + 2] = score, id
  end
  if payload ~= '' then stored[#stored + 1], stored[#stored + 2] = id, payload else empty[#empty + 1] = id end
end

-- Updates a task that has a score or a state field, or adds it anew if that is a dead letter's. Returns the outcome.
local function updateInGroup(group, holds, id, due, payload, score, field)
  local other, at = holdsOf(field), waitsUntil(field)
  if unitsOf(holds) or unitsOf(other) or (score or at) and other ~= holds then return standing(holds, nil, field) end
  if score then
    local outcome = enqueue(id, due, payload, score, field, holds)
    if outcome == 2 then fillGroup(group) end
    return outcome
  end
  if at and not supersedes(due, at) then return 3 end
  if at then
    moveInGroup(group, id, at, unlike(policy == 'keepdue' and math.min(due, at) or due, at), holds)
  else
    redis.call('ZREM', KEYS[3], id)
    enterGroup(group, due, id, holds)
  end
  setPayload(id, payload)
  return at and 2 or 1
end
