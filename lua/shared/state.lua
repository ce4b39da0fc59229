-- Prelude of the scripts that read or write state fields: what is in one.
-- A state field is '<attempt>:<lease>:<deferred>', or that and ':<note>'; each of the three may be empty.
--   attempt   how often the task was claimed; '<attempt>+<unseen>' if claims were not counted
--             because the delivery before was perhaps never seen
--   lease     its end; '<end>/<token>' once it has been extended. The token is the score with
--             which the task was claimed: the receipt of the whole attempt
--   deferred  when the waiting version is due
--   note      of a later version: 1 to 128 printable ASCII characters, no space and no ':'. It is not interpreted.
--             It belongs to the task and not to a claim: what writes the field again writes it again, and it alone is
--             a reason to have a field. It goes where the attempts begin anew (a waiting version or the next occurrence
--             takes over, Enqueue replaces the task, a dead letter comes back), and where the task ends or dies. So
--             a note that is of one claim has to name that claim's receipt: another version's claim keeps it.
-- A dead letter's state field is '<attempt>:dead:<reason>'.
-- A task that was never claimed has none, unless it has a note. The payload stands apart, so that nothing except
-- an enqueue writes it, and only what hands a task out reads it.

-- Returns a state field of these parts: numbers, and texts as they are written. note begins with its ':', or is ''.
local function encode(attempt, unseen, lease, deferred, note)
  local count = attempt > 0 and string.format('%.0f', attempt) or ''
  if unseen > 0 then count = count .. string.format('+%d', unseen) end
  return count .. ':' .. lease .. ':' .. deferred .. note
end

-- Returns the state field of a dead letter.
local function encodeDead(attempt, reason) return string.format('%.0f:dead:', attempt) .. reason end

-- Decodes a state field; nil for one not written by this library, of whatever version.
local function decode(field)
  if not field then return { attempt = 0, unseen = 0 } end
  local _, last, attempt, unseen, lease, token, due, note = string.find(field, '^(%d*)%+?(%d?):([%d.e+-]*)/?([%d.e+-]*):([%d.e+-]*)(:?[!-9;-~]*)$')
  if not last then
    _, last, attempt = string.find(field, '^(%d+):dead:')
    if not last or #attempt > 9 then return nil end
    return { attempt = tonumber(attempt), dead = true, reason = string.sub(field, last + 1, last + 512) }
  end
  if note ~= '' and not string.find(note, '^:.') or #note > 129 then return nil end
  local task = { attempt = tonumber(attempt) or 0, unseen = tonumber(unseen) or 0, note = note }
  task.lease, task.due = finite(lease), finite(due)
  task.token = finite(token) or task.lease
  if #attempt > 9 or (lease ~= '' and not task.lease) or (due ~= '' and not task.due) then return nil end
  return task
end
