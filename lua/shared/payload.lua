-- DEFINES payloadUpTo, doneOf, story
-- USES prelude
-- For the scripts that read tasks and leave them as they are.

-- Returns a frame without its payload: frame.go says what is in it. '' if it is none.
local function headOf(frame)
  local size, unit, at = 0, 1, 6
  if string.sub(frame, 1, 5) ~= '\255SLU\1' then return '' end
  repeat
    local byte = string.byte(frame, at) or 0
    size, unit, at = size + byte % 128 * unit, unit * 128, at + 1
  until byte < 128 or at > 15
  return string.sub(frame, 1, at - 1 + size)
end

-- Returns what is shown of a payload or a result: '' for an empty one; or, if it has more than most bytes, how many it has. An empty most
-- is for any number, and 'head' for the kind and header only. Returns how many bytes there are, too.
local function upTo(most, data)
  if most == 'head' then return headOf(data), #data end
  if most ~= '' and #data > tonumber(most) then return #data, #data end
  return data, #data
end

-- Reads a task's payload, nothing if most is '0', and returns what upTo does.
local function payloadUpTo(most, id)
  if most == '0' then return '', 0 end
  return upTo(most, redis.call('HGET', KEYS[2], id) or '')
end

-- Returns the attempt of a task that is done, and what upTo does of its result, which is read even if most is '0'.
local function doneOf(most, id)
  local kept = redis.call('HGET', KEYS[11], id) or '1 '
  local _, last, attempt = string.find(kept, '^(%d+) ')
  if not attempt or #attempt > 9 then return '1', '', #kept end
  if most == '0' then return attempt, '', #kept end
  return attempt, upTo(most, string.sub(kept, last + 1))
end

-- Returns why a task is dead, or its last error, and when that was; since when it is leased, and which worker has it. Each is '' if there
-- is none. state is as cancel.lua says.
local function story(id, task, state)
  if state == 4 then return task.reason or 'malformed', '', '', '' end
  local last, at, reason, lasts, worker = task.attempt > 0 and redis.pcall('HGET', KEYS[7], id), nil, nil, nil, nil
  if type(last) == 'string' then at, reason = string.match(last, '^(%S+) (.*)$') end
  if state == 3 then lasts, worker = string.match(task.claimant or '', '^:([%d.]+)/(%w*)$') end
  local isKnown = finite(at) and reason
  return isKnown and reason or '', isKnown and at or '', finite(lasts) and text(task.token - tonumber(lasts)) or '', finite(lasts) and worker or ''
end
