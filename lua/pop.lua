-- Removes due tasks from the queue and returns them, earliest first.
-- KEYS[3] the dead letters   KEYS[5] the leased tasks   KEYS[8] the queue's pause and limits   KEYS[9] its counts   KEYS[12] see stock.lua
-- ARGV[1] n, at most 250   ARGV[2] and ARGV[3] as bury's first two
-- RETURNS { 1 if there may be more, -1 if a pause or limits keep more from being handed out, else 0; then per task: id, score, attempt and what it holds, payload }
-- USES unpack, rights, queue_idle, wake, read, limits, failure, tally, leases, stock, groups, trim, due
-- RETRY never: if the script runs twice, the second run removes other tasks.
redis.call('ZCARD', KEYS[3]) -- check the types before the first write
local leases = redis.call('ZCARD', KEYS[5])
redis.call('ZCARD', KEYS[1]) -- what is of another type is no queue
readLimits()
local n, most = tonumber(ARGV[1]), tonumber(ARGV[1])
if limits then most = limits.allowed(n, nil, true) end
if most <= 0 then return { -1 } end
local ready, _, more, cleanUp = due(most)
more = payloads(ready) or more
local reply, removed, again, holders, fields = { most < n and #ready == most and -1 or more and 1 or 0 }, {}, {}, {}, {}
for _, task in ipairs(ready) do
  removed[#removed + 1] = task.id
  if task.attempt > 0 then again[#again + 1] = task.id end
  if task.holds then holders[#holders + 1], fields[#fields + 1] = { task.id, task.holds }, task.holds end
  if groupOf(task.holds) then needGroups() end
  append(reply, task.id, task.score, string.format('%.0f', task.attempt) .. (task.holds or ''), task.payload or '')
end
if #removed > 0 then
  need('HDEL', KEYS[2])
  needStock(fields)
  if limits and limits.rate > 0 then need('SET', KEYS[8]) end
  redis.call('ZREM', KEYS[1], unpack(removed))
  redis.call('HDEL', KEYS[2], unpack(removed))
  redis.call('HDEL', KEYS[4], unpack(removed))
  if leases > 0 then unlease(removed) end
  for _, holder in ipairs(holders) do settle(holder[1], holder[2], true) end
  if KEYS[14] then leaveGroups(holders) end
  forgetErrors(again)
  tally('done', #removed)
end
if limits then limits.spend(#removed, 0) end
-- Others see to the next head, which may have been added behind what was removed, so that no watchman knows of it. Of a lease it knows by its looks.
local off, head = 3600000001, nil
if #removed > 0 then
  local hold = limits and limits.heldBack() or 0
  off, head = headOff()
  if hold > 0 then off = math.max(off, hold) end
end
if off <= 0 and more or off > 0 and head and not redis.pcall('ZSCORE', KEYS[5], head) then seeTo(off, 1) end
local buried = cleanUp()
if buried > 0 then trim(buried, ARGV[2], ARGV[3]) end
wake(earliestPromoted)
return reply
