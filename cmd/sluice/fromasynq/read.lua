-- Reads some tasks of an asynq queue: of each what is stored, its state and its time.
-- KEYS[1] pending   KEYS[2] scheduled   KEYS[3] retry   KEYS[4] archived   KEYS[5] …   the hashes of the tasks
-- ARGV[1] …   their IDs
-- RETURNS three texts per task: the message, '' if there is no such task; the state; in scheduled, retry and archived the score,
--         which is Unix seconds, in pending Unix nanoseconds since when, '' if that is not known
local zsets, replies = { scheduled = 2, retry = 3, archived = 4 }, {}
for i, id in ipairs(ARGV) do
  local message, state, since = unpack(redis.call('HMGET', KEYS[4 + i], 'msg', 'state', 'pending_since'))
  local zset = zsets[state]
  if zset then since = redis.call('ZSCORE', KEYS[zset], id) end
  replies[#replies + 1] = message or ''
  replies[#replies + 1] = state or ''
  replies[#replies + 1] = since or ''
end
return replies
