-- Removes tasks in whatever state they are. The IDs of those that are leased are published, so that their
-- holders can stop at once.
-- KEYS[3] the dead letters   KEYS[6] the queue's line   KEYS[8] its pause and limits   KEYS[9] its counts   KEYS[10] and KEYS[11] see done.lua   KEYS[12] see stock.lua   KEYS[14] see groups.lua
-- ARGV[1] the channel of cancelled tasks   ARGV[2] the number of ids, at most 250   then the ids   then nothing, or of each the score with which it was
--         read: a task that has another one now is left alone
-- RETURNS of each the state in which it was: 0 absent   1 scheduled   2 due   3 leased   4 dead   5 done   6 waiting in its group. An ID that comes again is
--         absent the second time, and so is a task that is left alone
-- USES unpack, rights, wake, publish, freed, failure, groups, fields, leases, stock, state
-- RETRY never: if the script runs twice, the second run may remove a task enqueued since.
local n, ids, states, known, gone, left, leases = tonumber(ARGV[2]), {}, {}, {}, {}, {}, 0
for i = 1, n do ids[i] = ARGV[i + 2] end
local scores, dead, fields = redis.call('ZMSCORE', KEYS[1], unpack(ids)), redis.call('ZMSCORE', KEYS[3], unpack(ids)), redis.call('HMGET', KEYS[4], unpack(ids))
local done = redis.pcall('ZMSCORE', KEYS[10], unpack(ids))
for i, id in ipairs(ids) do
  local score, field = scores[i], fields[i]
  states[i] = score and stateOf(live(field), score) or dead[i] and 4 or waitsUntil(field) and 6 or done[i] and 5 or 0
  if known[id] or ARGV[n + 3] and tonumber(ARGV[n + 2 + i]) ~= shownScore(states[i], field, score or dead[i] or done[i]) then
    states[i] = 0
  else
    gone[#gone + 1] = id
    if states[i] > 0 or field then left[#left + 1] = { id, field } end
    if states[i] == 3 then leases = leases + 1 end
    if groupOf(holdsOf(field)) then needGroups() end
    known[id] = true
  end
end
redis.call('HLEN', KEYS[2]) -- check the types before the first write
redis.call('HLEN', KEYS[4])
redis.call('ZCARD', KEYS[5])
need('HDEL', KEYS[2])
needStock(fields)
if #gone == 0 then return states end
-- Also what stands under an ID without a task: a foreign consumer may have left it.
redis.call('ZREM', KEYS[1], unpack(gone))
redis.call('ZREM', KEYS[3], unpack(gone))
unlease(gone)
redis.call('HDEL', KEYS[2], unpack(gone))
redis.call('HDEL', KEYS[4], unpack(gone))
for _, task in ipairs(left) do settle(task[1], task[2], false) end
if #left > 0 and KEYS[14] then leaveGroups(left) end
wake(earliestPromoted)
forgetErrors(gone)
redis.pcall('ZREM', KEYS[10], unpack(gone))
redis.pcall('HDEL', KEYS[11], unpack(gone))
-- If the server denies that, the holders learn of it by their next extensions.
for i, id in ipairs(ids) do
  if states[i] == 3 then publish(ARGV[1], id) end
end
if leases > 0 then freed(leases) end
return states
