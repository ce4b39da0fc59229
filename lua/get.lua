-- Returns tasks, in whatever state they are, and the time. Stops early at a megabyte of payloads.
-- KEYS[3] the dead letters   KEYS[7] the last errors   KEYS[9] the queue's counts   KEYS[10] and KEYS[11] see done.lua
-- ARGV[1] the most bytes of payload, as in payload.lua   ARGV[2] for how many seconds what is done is shown, as in payload.lua
-- then two per task, 500 tasks at most: id, the score with which it is left out, '' for none
-- RETURNS { now, then of each: its number among them, score, attempt, payload, state as in cancel.lua, and what story says }. One that is not
--         there has state 0; one with a score or state field not written by this library is left out
-- USES unpack, prelude, read, state, groups, fields, payload
-- RETRY readOnly: changes nothing.
local reply, size, after = { text(now) }, 0, nil

-- Returns score, attempt, payload and state of a task, its story, and how many bytes were read; nothing of one that is malformed.
local function show(id, score)
  local dead = not score and redis.call('ZSCORE', KEYS[3], id)
  if not score and not dead then
    local field = redis.call('HGET', KEYS[4], id)
    local at = waitsUntil(field)
    if at then
      local payload, read = payloadUpTo(ARGV[1], id)
      return { text(at), '0' .. holdsOf(field), payload, 6, '', '', '', '' }, read
    end
    local done = finite(redis.call('ZSCORE', KEYS[10], id))
    after = after or doneAfter(ARGV[2])
    if not done or done <= after then return { '0', '0', '', 0, '', '', '', '' }, 0 end
    local attempt, result, read = doneOf(ARGV[1], id)
    return { text(done), attempt, result, 5, '', '', '', '' }, read
  end
  local task = (dead and decode or live)(redis.call('HGET', KEYS[4], id))
  score = finite(score or dead)
  if not task or not score then return end
  local state = dead and 4 or stateOf(task, score)
  if not dead then task, score = resolve(task, score) end
  local payload, read = payloadUpTo(ARGV[1], id)
  return { text(score), string.format('%.0f', task.attempt) .. (task.holds or ''), payload, state, story(id, task, state) }, read
end

local ids = {}
for i = 3, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
local scores = #ids > 0 and redis.call('ZMSCORE', KEYS[1], unpack(ids))
for i = 3, #ARGV, 2 do
  local score = scores[(i - 1) / 2]
  if size < 1048576 and (not score or tonumber(score) ~= tonumber(ARGV[i + 1])) then
    local shown, read = show(ARGV[i], score)
    if shown then append(reply, (i - 1) / 2, unpack(shown)) end
    size = size + (read or 0)
  end
end
return reply
