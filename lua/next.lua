-- Returns for each queue how long it is until its earliest task is due, and which task that is.
-- KEYS the queues, 250 at most
-- ARGV their wake channels
-- RETURNS per queue: microseconds, 0 if it is due, -1 if there is none within an hour, -2 for an error; its score
--         and ID, or ''; how many clients wait, if it is due within an hour. Of one queue, its error.
-- RETRY readOnly: changes nothing.
local reply = {}
for i, key in ipairs(KEYS) do
  local found, off, head, clients = redis.pcall('ZRANGE', key, '0', '0', 'WITHSCORES'), -1, '', 0
  if found.err and #KEYS == 1 then return found end
  local id, score = found[1], found[2]
  local due = finite(score)
  if found.err then
    off = -2
  elseif due and due - now <= 3600 then
    off = math.max(math.ceil((due - now) * 1000000), 0)
  elseif not due and score and string.sub(score, 1, 1) == '-' then
    off = 0
  end
  if off >= 0 then
    -- The head only has to be told from others: the rest of a foreign ID that is longer is not needed.
    head = score .. ' ' .. string.sub(id, 1, 512)
    clients = redis.pcall('PUBSUB', 'NUMSUB', string.sub(ARGV[i], 1, -5) .. 'idle')[2] or 0
  end
  reply[#reply + 1] = off
  reply[#reply + 1] = head
  reply[#reply + 1] = clients
end
return reply
