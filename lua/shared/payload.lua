-- Prelude of the scripts that read tasks and leave them as they are.

-- Reads a task's payload. Returns it, '' for an empty one; or, if it has more than most bytes, how many it
-- has. An empty most is for any number; for '0' nothing is read. Returns how many bytes were read, too.
local function payloadUpTo(most, id)
  if most == '0' then return '', 0 end
  local payload = redis.call('HGET', KEYS[2], id) or ''
  if most ~= '' and #payload > tonumber(most) then return #payload, #payload end
  return payload, #payload
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
