-- Prelude of the scripts that tell waiters of the queue's head.

-- Returns how many clients have a caller that waits for tasks, as far as this server knows: those
-- subscribed to the idle channel, whose name is like the wake channel's. 0 if that is denied.
local function waiters(channel)
  return redis.pcall('PUBSUB', 'NUMSUB', string.sub(channel, 1, -5) .. 'idle')[2] or 0
end

-- Returns how many microseconds off the queue's head is, 0 if it is due, -1 if there is none within
-- an hour; and how many clients wait, if it is due within a second. Only a hint.
local function outlook(channel)
  local head = finite(redis.pcall('ZRANGE', queue, '0', '0', 'WITHSCORES')[2])
  if not head or head - now > 3600 then return -1, 0 end
  return math.max(math.ceil((head - now) * 1000000), 0), head - now <= 1 and waiters(channel) or 0
end

-- Publishes the head: how many clients wait, how many tasks are due within a millisecond (those of
-- a batch are a microsecond apart), and how many microseconds off the head is. Few of many clients
-- that hear of it ask for it. Only a hint: if the server denies a command, waiters still poll.
local function announce(channel, off, clients)
  local due = off <= 1000 and redis.pcall('ZCOUNT', queue, '-inf', text(now + 0.001)) or 1
  if type(due) ~= 'number' then due = 1 end
  redis.pcall('PUBLISH', channel, string.format('%.0f %.0f %.0f', clients, due, off))
end

-- Notifies waiters if score, the earliest that this script has written, is the queue's new
-- head, or was it until this same script gave that task a later one.
local function wake(channel, score)
  local head = score and finite(redis.pcall('ZRANGE', queue, 0, 0, 'WITHSCORES')[2])
  if head and head >= score then
    announce(channel, math.max(math.ceil((head - now) * 1000000), 0), waiters(channel))
  end
end
