-- Prelude of the scripts that read tasks and leave them as they are.

-- Reads a task's payload. Returns it, '' for an empty one; or, if it has more than most bytes, how many it
-- has. An empty most is for any number; for '0' nothing is read. Returns how many bytes were read, too.
local function payloadUpTo(most, id)
  if most == '0' then return '', 0 end
  local payload = redis.call('HGET', KEYS[2], id) or ''
  if most ~= '' and #payload > tonumber(most) then return #payload, #payload end
  return payload, #payload
end
