-- DEFINES payloadUpTo, doneOf, story, doneAfter
-- USES prelude
-- For the scripts that read tasks and leave them as they are.

-- Returns what is shown of a payload or a result: '' for an empty one; or, if it has more than most bytes, how many it has. An empty most
-- is for any number. Returns how many bytes there are, too.
local function upTo(most, data)
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

-- Returns after when a task must have been finished to be shown as done: retention, in seconds, is that of the Queue that asks. If it is 0, the
-- last worker's counts: see presence.lua.
local function doneAfter(retention)
  local age = tonumber(retention) > 0 and retention or redis.pcall('HGET', KEYS[9], 'retention')
  return now - (type(age) == 'string' and finite(age) or 1e300)
end

-- Returns why a task is dead, or its last error, and when that was; since when it is leased, and which worker has it, or since when it was and
-- which one had it until its lease ended. Each is '' if there is none. state is as cancel.lua says; task is as resolve returns it.
local function story(id, task, state)
  if state == 4 then return task.reason or 'malformed', '', '', '' end
  -- In its first attempt a task has no error: what is there then was left by an earlier task of that ID.
  local last, at, reason, lasts, worker = task.attempt > (task.lease and 1 or 0) and redis.pcall('HGET', KEYS[7], id), nil, nil, nil, nil
  if type(last) == 'string' then at, reason = string.match(last, '^(%S+) (.*)$') end
  if task.lease then lasts, worker = string.match(task.claimant or '', '^:([%d.]+)/(%w*)$') end
  local isKnown = finite(at) and reason
  return isKnown and reason or '', isKnown and at or '', finite(lasts) and text(task.token - tonumber(lasts)) or '', finite(lasts) and worker or ''
end
