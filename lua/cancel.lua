-- Removes a task in whatever state it is. If it is leased, publishes its ID, so that its
-- holder can stop at once.
-- KEYS[3] the dead letters   KEYS[6] the queue's line   KEYS[8] its pause and limits   KEYS[9] its counts   KEYS[10] and KEYS[11] see done.lua   KEYS[12] see stock.lua   KEYS[14] see groups.lua
-- ARGV[1] id   ARGV[2] the channel of cancelled tasks
-- RETURNS the state in which it was: 0 absent   1 scheduled   2 due   3 leased   4 dead   5 done   6 waiting in its group
-- USES rights, wake, publish, freed, failure, groups, fields, leases, stock, state
-- RETRY never: if the script runs twice, the second run may remove a task enqueued since.
local id = ARGV[1]
local score, dead = redis.call('ZSCORE', KEYS[1], id), redis.call('ZSCORE', KEYS[3], id)
local done = redis.pcall('ZSCORE', KEYS[10], id)
local field = redis.call('HGET', KEYS[4], id)
local holds = holdsOf(field)
local state = score and stateOf(live(field), score) or dead and 4 or waitsUntil(field) and 6 or type(done) == 'string' and 5 or 0
redis.call('HLEN', KEYS[2]) -- check the types before the first write
redis.call('HLEN', KEYS[4])
redis.call('ZCARD', KEYS[5])
need('HDEL', KEYS[2])
if holds and groupOf(holds) then needGroups() end
redis.call('ZREM', KEYS[1], id)
redis.call('ZREM', KEYS[3], id)
unlease({ id })
redis.call('HDEL', KEYS[2], id)
redis.call('HDEL', KEYS[4], id)
settle(id, field, false)
if holds and KEYS[14] then leaveGroups({ { id, field } }) end
wake(earliestPromoted)
forgetErrors({ id })
redis.pcall('ZREM', KEYS[10], id)
redis.pcall('HDEL', KEYS[11], id)
-- If the server denies that, the holder learns of it by its next extension.
if state == 3 then
  publish(ARGV[2], id)
  freed(1)
end
return state
