-- Removes a queue with all its tasks and dead letters.
-- KEYS[1] the queue   KEYS[2] its tasks   KEYS[3] the dead letters   KEYS[4] the states
-- KEYS[5] the leased tasks   KEYS[7] the last errors   KEYS[10] and KEYS[11] what is done   KEYS[12] the stocks: what tasks hold is put back   KEYS[14] the groups. Line, pause, limits and counts (KEYS[9]) stay.
-- RETURNS the number of keys removed
-- USES rights, prelude, tally
-- RETRY never: if the script runs twice, the second run may remove tasks enqueued since.
redis.call('ZCARD', KEYS[1]) -- what is of another type is no queue
local stocks = redis.call('HGETALL', KEYS[12])
if #stocks > 0 then need('HDEL', KEYS[12]) end
local lost = tonumber(redis.pcall('ZCOUNT', KEYS[5], '-inf', text(now))) or 0
local removed = redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[7], KEYS[10], KEYS[11], KEYS[14]) -- first: it may be denied
for i = 1, #stocks, 2 do
  if string.sub(stocks[i], 1, 5) == 'held:' then redis.call('HDEL', KEYS[12], stocks[i]) end
end
tally('lost', lost)
return removed
