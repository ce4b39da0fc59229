-- Takes tasks out of a paused asynq queue, each only if it is what it was when it was read, and no worker has it.
-- KEYS[1] pending   KEYS[2] scheduled   KEYS[3] retry   KEYS[4] archived   KEYS[5] paused   KEYS[6] …   the hashes of the tasks
-- ARGV   two per task: ID; the message that was read
-- RETURNS one number per task: 1 it has left   0 there is no such task   2 it has changed, or is at work   3 the queue is not paused,
--         so that a worker may take the task at any time: nothing changed
-- It may run twice: a task that has left is not there.
local none = KEYS[1] .. ':none' -- a right that the user lacks ends the script here, before the first change
redis.call('LREM', none, -1, '')
redis.call('ZREM', none, '')
redis.call('GET', none)
redis.call('DEL', none)
local zsets, replies = { scheduled = 2, retry = 3, archived = 4 }, {}
local paused = redis.call('EXISTS', KEYS[5]) == 1
for i = 1, #ARGV, 2 do
  local id, read, hash = ARGV[i], ARGV[i + 1], KEYS[5 + (i + 1) / 2]
  local message, state, unique = unpack(redis.call('HMGET', hash, 'msg', 'state', 'unique_key'))
  local reply, left = 2, 0
  if not message then
    reply = 0
  elseif not paused then
    reply = 3
  elseif message == read then
    if state == 'pending' then
      left = redis.call('LREM', KEYS[1], -1, id) -- from the end that workers take from, where the import begins, too
    elseif zsets[state] then
      left = redis.call('ZREM', KEYS[zsets[state]], id)
    end
  end
  if left > 0 then
    if unique and unique ~= '' and redis.call('GET', unique) == id then redis.call('DEL', unique) end
    redis.call('DEL', hash)
    reply = 1
  end
  replies[#replies + 1] = reply
end
return replies
