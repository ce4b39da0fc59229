-- DEFINES encode, encodeDead, holdsOf, unitsOf, decode
-- USES prelude
-- For the scripts that read or write state fields: what is in one.
-- A state field is '<attempt>:<lease>:<deferred>', or with a lease that and ':<claimant>'; each may be empty.
--   attempt   how often the task was claimed; '<attempt>+<unseen>' if claims were not counted
--             because the delivery before was perhaps never seen
--   lease     its end; '<end>/<token>' once it has been extended. The token is the score with
--             which the task was claimed: the receipt of the whole attempt
--   deferred  when the waiting version is due
--   claimant  '<for how many seconds it was leased>/<worker>', the worker empty for a Claim. The task is leased since the token less these
--             seconds. It belongs to the lease: it is kept as long as that, also of another form, which a later version has
--             written: 1 to 128 printable ASCII characters, no space and no ':'
-- A dead letter's state field is '<attempt>:dead:<reason>'.
-- A task that was never claimed has none, unless it holds units of a stock: then '*<units>,<bytes of the item>:<item>' stands in front
-- of its state field from its enqueue to its end. Likewise '@<bytes of the group>:<group>', behind that, if it is in a group. The payload
-- stands apart, so that nothing except an enqueue writes it, and only what hands a task out reads it.

-- Returns a state field of these parts: numbers, and texts as they are written. claimant begins with its ':', or is ''.
local function encode(attempt, unseen, lease, deferred, claimant)
  local count = attempt > 0 and string.format('%.0f', attempt) or ''
  if unseen > 0 then count = count .. string.format('+%d', unseen) end
  return count .. ':' .. lease .. ':' .. deferred .. claimant
end

-- Returns the state field of a dead letter.
local function encodeDead(attempt, reason) return string.format('%.0f:dead:', attempt) .. reason end

-- Returns what stands in front of a state field of a task that holds units, or is in a group; nil of another one.
local function holdsOf(field)
  local kind = field and string.byte(field, 1)
  if kind ~= 42 and kind ~= 64 then return nil end
  local taken, _, last, length = 0, nil, nil, nil
  if kind == 42 then
    _, last, length = string.find(field, '^%*%d+,(%d+):')
    if not last then return nil end
    taken = last + tonumber(length)
  end
  _, last, length = string.find(field, '^@(%d+):', taken + 1)
  return string.sub(field, 1, last and last + tonumber(length) or taken)
end

-- Of what stands in front of a state field, returns how many units the task holds, as text, of which item, and the rest. Without units, nil, nil
-- and all of it.
local function unitsOf(holds)
  local _, last, units, length = string.find(holds or '', '^%*(%d+),(%d+):')
  if not last then return nil, nil, holds end
  local taken = last + tonumber(length)
  return units, string.sub(holds, last + 1, taken), string.sub(holds, taken + 1)
end

-- Decodes a state field; nil for one not written by this library, of whatever version.
local function decode(field)
  if not field then return { attempt = 0, unseen = 0 } end
  local holds = holdsOf(field)
  if holds then field = string.sub(field, #holds + 1) end
  if field == '::' then return { attempt = 0, unseen = 0, claimant = '', holds = holds } end
  local _, last, attempt, unseen, lease, token, due, claimant = string.find(field, '^(%d*)%+?(%d?):([%d.e+-]*)/?([%d.e+-]*):([%d.e+-]*)(:?[!-9;-~]*)$')
  if not last then
    _, last, attempt = string.find(field, '^(%d+):dead:')
    if not last or #attempt > 9 then return nil end
    return { attempt = tonumber(attempt), dead = true, reason = string.sub(field, last + 1, last + 512), holds = holds }
  end
  if claimant ~= '' and not string.find(claimant, '^:.') or #claimant > 129 then return nil end
  local task = { attempt = tonumber(attempt) or 0, unseen = tonumber(unseen) or 0, claimant = claimant, holds = holds }
  task.lease, task.due = finite(lease), finite(due)
  task.token = finite(token) or task.lease
  if #attempt > 9 or (lease ~= '' and not task.lease) or (due ~= '' and not task.due) then return nil end
  return task
end
