-- Prelude of the scripts that tell waiters of the queue's head.

-- Returns in how many microseconds the queue's head is due, negative if it has been for so long, and
-- more than an hour if there is none before; and how many clients wait, if it is due within a second.
-- Only a hint.
local function outlook(channel)
  local head = finite(redis.pcall('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES')[2])
  if not head or head - now > 3600 then return 3600000001, 0 end
  return math.ceil(math.max(head - now, -9000000000) * 1000000), head - now <= 1 and waiters(channel) or 0
end

-- Publishes the head: how many clients wait, how many tasks are due within a millisecond (those of
-- a batch are a microsecond apart), and how many microseconds off the head is. Few of many clients
-- that hear of it ask for it. Only a hint: if the server denies a command, waiters still poll.
local function announce(channel, off, clients)
  local due = off <= 1000 and redis.pcall('ZCOUNT', KEYS[1], '-inf', text(now + 0.001)) or 1
  if type(due) ~= 'number' then due = 1 end
  publish(channel, string.format('%.0f %.0f %.0f', clients, due, off))
end

-- Notifies waiters if score, the earliest that this script has written, is the queue's new
-- head, or was it until this same script gave that task a later one.
local function wake(channel, score)
  local head = score and finite(redis.pcall('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2])
  if head and head >= score then
    announce(channel, math.max(math.ceil((head - now) * 1000000), 0), waiters(channel))
  end
end
