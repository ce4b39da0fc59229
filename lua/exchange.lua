-- Finishes tasks: removes each task whose receipt is still valid, or lets its waiting version
-- take over. Then claims due tasks, earliest first: each gets a lease and one more attempt.
-- Either may be left out. If all tasks are plain, plain.lua has done it and has returned before this.
-- KEYS[3] the dead letters   KEYS[6] the queue's line   KEYS[7] the last errors   KEYS[8] its pause and limits   KEYS[9] its counts   KEYS[10] and KEYS[11] see done.lua, if needed   KEYS[12] see stock.lua, if one of the tasks holds units
-- ARGV[1] the client, '' if it wants no place in line   ARGV[2] how many tasks to claim, at most 250   ARGV[3] lease in seconds
-- ARGV[4] attempts allowed, 0 for any number   if any are to be claimed: ARGV[5] the client joins the line if it claims fewer
-- than that; negative if it is in line, and leaves it otherwise   ARGV[6] its watch in ms   ARGV[7] and ARGV[8] as bury's first two
-- ARGV[9] the claimant: '<lease in seconds>/<worker>'; then, for tasks to be finished that have the same receipt: it, their number, their IDs;
-- then, if they are to be remembered: '', for how many seconds, and of each that has a result: its number among them, the result; or '' and -1 if
-- tasks that hold units are to be discarded
-- RETURNS { 1 if there may be more, 2 if there is what only a script that is given all keys may clean up, -1 if pause or limits keep more from being handed out, else 0; lease end; IDs claimed; the attempt of each, and what it holds, none if all
--           are first ones of tasks that hold nothing; the payload of each, none if all are empty; when each was due, in one text; one number per task
--           to be finished: 1 done   4 done, and its result was dropped   0 stale   2 gone; 0 and 2: nothing changed. None if all are 1; microseconds
--           until the head is due, as headOff says; clients in line; the place as lookOut says }
-- USES rights, wake, limits, plain, groups, trim, due, finish
-- RETRY never: if the script runs twice, the second run claims other tasks. It is idempotent if
-- it only finishes tasks: the first run uses up the receipts, so a second run changes nothing.
if n > 0 and #ids > 0 then -- nothing that claims may be denied once tasks are finished
  needLease()
  need('ZRANGEBYSCORE', KEYS[1])
end
redis.call('ZCARD', KEYS[3]) -- check the type before the first write
needGroups()
local answers, first = {}, nil
if #ids > 0 then answers, first = finishAll() end

local claimed, attempts, unseen, holds, payloadList, dues, most, cut, lacks = {}, {}, {}, {}, {}, {}, n, false, false
if limits then most = limits.allowed(n) end
if most > 0 then
  local ready, any, further, cleanUp, leaves = due(most, limit)
  further, lacks = payloads(ready) or further, leaves
  if any then
    needLease()
    redis.call('ZREM', KEYS[1], any) -- it gets a new score in any case; after this ZREM a full server accepts the ZADD
  end
  for i, task in ipairs(ready) do
    claimed[i], payloadList[i], dues[i] = task.id, task.payload, task.score
    attempts[i], unseen[i] = nextAttempt(task)
    holds[i] = task.holds
  end
  if #claimed > 0 then lease(claimed, attempts, unseen, holds) end
  for i, held in pairs(holds) do attempts[i] = attempts[i] .. held end
  local buried = cleanUp()
  if buried > 0 then trim(buried, ARGV[7], ARGV[8]) end
  cut = further and #claimed < most
end
if limits then limits.spend(#claimed, #claimed) end
wake(earlier(first, earliestPromoted))
local off, waiting, place = lookOut(#claimed)
return { lacks and 2 or moreThan(#claimed, most, cut), leaseEnd, claimed, attempts, payloadList, table.concat(dues, ' '), answers, off, waiting, place }
