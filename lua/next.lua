-- Returns for each queue how long it is until its earliest task is due, and which task that is.
-- KEYS for each queue: it, and its pause. One queue; next_many, which scripts.go makes of this, takes 250 at most
-- ARGV their wake channels
-- RETURNS per queue: microseconds, 0 if it is due, -1 if there is none within an hour, -2 for an error; its score
--         and ID, or ''; how many clients wait, if it is due within an hour. Of one queue, its error.
-- RETRY readOnly: changes nothing.
local reply = {}

-- Appends what is known of a queue by its head. Says whether it was the last one.
local function append(found, pauseLeft, channel)
  local off, head, clients, id, score = -1, '', 0, found[1], found[2]
  local due = finite(score)
  if found.err then
    off = -2
  elseif due and due - now <= 3600 then
    off = math.max(math.ceil((due - now) * 1000000), 0)
  elseif not due and score and string.sub(score, 1, 1) == '-' then
    off = 0
  end
  local pause = off >= 0 and pauseEnds(pauseLeft())
  if pause then off = pause > 3600000000 and -1 or math.max(off, pause) end
  if off >= 0 then
    -- The head only has to be told from others: the rest of a foreign ID that is longer is not needed.
    head = score .. ' ' .. string.sub(id, 1, 512)
    clients = waiters(channel)
  end
  reply[#reply + 1] = off
  reply[#reply + 1] = head
  reply[#reply + 1] = clients
  if found.err and #ARGV == 1 then reply = found end
  return #reply == 3 * #ARGV or #ARGV == 1
end

-- The last line is for one queue. The script for several has it for each, with its number.
if append(redis.pcall('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES'), function() return redis.pcall('PTTL', KEYS[2]) end, ARGV[1]) then return reply end
