-- Puts tasks into the queue as they were, in this queue or another one: with their attempts and last errors, dead letters as such.
-- KEYS[3] the dead letters   KEYS[7] the last errors   KEYS[8] the queue's pause and limits   KEYS[9] its counts   KEYS[10] what is done   KEYS[12] see stock.lua   KEYS[14] see groups.lua
-- ARGV[1] as get's second   then eight per task: id; Unix seconds, when it is due, or has died; '4' for a dead letter, else '1'; attempt; payload; why it is dead, or its last error; Unix seconds of that
--         error, '' for none; what stands in front of its state field. What it holds of a stock it has whatever is left
-- RETURNS one number per task: 1 added   3 there is a task of that ID   5 it is done and remembered: nothing changed
-- USES unpack, rights, prelude, wake, failure, state, stock, groups, fields, leases, payload, restored
-- RETRY never: a worker may finish the task between two runs, and the second would add it again.
redis.call('HLEN', KEYS[2]) -- check the types before the first write
redis.call('ZCARD', KEYS[3])
redis.call('ZCARD', KEYS[5])
redis.call('HLEN', KEYS[12])
needAll()
needGroups()
need('HSET', KEYS[2])
need('HDEL', KEYS[2])
need('HINCRBY', KEYS[12])
local replies = {}
local after, earliest = doneAfter(ARGV[1]), nil
for i = 2, #ARGV, 8 do
  local id, at, isDead, attempt, payload, reason, failed, holds = unpack(ARGV, i, i + 7)
  at, attempt, holds = tonumber(at), tonumber(attempt), holds ~= '' and holds or nil
  local field = redis.call('HGET', KEYS[4], id)
  if redis.call('ZSCORE', KEYS[1], id) or redis.call('ZSCORE', KEYS[3], id) or waitsUntil(field) then
    replies[#replies + 1] = 3
  elseif (finite(redis.pcall('ZSCORE', KEYS[10], id)) or -math.huge) > after then
    replies[#replies + 1] = 5
  else
    if isDead == '4' then
      redis.call('ZADD', KEYS[3], text(at), id)
      redis.call('HSET', KEYS[4], id, (holds or '') .. encodeDead(attempt, reason))
    else
      if field then redis.call('HDEL', KEYS[4], id) end -- a foreign consumer has left it
      earliest = earlier(earliest, restoreQueued(id, at, attempt, holds))
    end
    if field then settleGone(id, field) end
    unlease({ id })
    if payload ~= '' then redis.call('HSET', KEYS[2], id, payload) else redis.call('HDEL', KEYS[2], id) end
    if isDead ~= '4' and failed ~= '' and attempt > 0 then redis.pcall('HSET', KEYS[7], id, failed .. ' ' .. reason) else forgetErrors({ id }) end
    local units, item = unitsOf(holds)
    if units then redis.call('HINCRBY', KEYS[12], 'held:' .. item, units) end
    replies[#replies + 1] = 1
  end
end
wake(earlier(earliest, earliestPromoted), #replies)
return replies
