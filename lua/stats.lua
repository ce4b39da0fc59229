-- Counts a queue's tasks, its dead letters and the clients that wait.
-- KEYS[3] the dead letters   KEYS[5] the leased tasks   KEYS[6] the queue's line   KEYS[8] its pause and limits
-- KEYS[9] its counts   KEYS[10] what is done   KEYS[13] the workers   KEYS[14] see groups.lua
-- ARGV[1] for how many seconds what is done counts, as in payload.lua
-- RETURNS { due, scheduled, dead, score of the oldest due or '', score of the next scheduled or leased or '', now,
--           leased, for how many ms it is paused, -1 for no end, -2 if it is not; the five counts as below; how many workers live, and when one did last, in
--           Unix seconds, or ''; clients in line; how many
--           finished tasks are remembered;
--           of its limits: running, rate, per in microseconds, burst, per group, 0 for none; how many tasks wait in groups; how many were discarded }
-- USES prelude, limits, payload
-- RETRY readOnly: changes nothing.
local due = redis.call('ZCOUNT', KEYS[1], '-inf', text(now))
local leased = redis.call('ZCOUNT', KEYS[5], '(' .. text(now), '+inf')
local oldest = redis.call('ZRANGEBYSCORE', KEYS[1], '-1e300', text(now), 'WITHSCORES', 'LIMIT', 0, 1)[2]
local scheduled = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(now), '1e300', 'WITHSCORES', 'LIMIT', 0, 1)[2]
local counts = redis.call('HMGET', KEYS[9], 'done', 'retried', 'buried', 'lost', 'dropped', 'worked', 'discarded')
for i = 1, 5 do counts[i] = finite(counts[i]) or 0 end
counts[4] = counts[4] + redis.call('ZCOUNT', KEYS[5], '-inf', text(now)) -- those that have run out, and which nothing has counted yet: see leases.lua
local workers = redis.call('ZCOUNT', KEYS[13], '(' .. text(now), text(now + 10800))
local waiting, done = redis.pcall('ZCARD', KEYS[6]), redis.pcall('ZCOUNT', KEYS[10], '(' .. text(doneAfter(ARGV[1])), '+inf')
readLimits()
limits = limits or { ends = 0, running = 0, rate = 0, per = 0, burst = 0, group = 0 }
local pause = limits.ends <= us and -2 or limits.ends < 9e15 and math.floor((limits.ends - us) / 1000) or -1
return { due, math.max(redis.call('ZCARD', KEYS[1]) - due - leased, 0), redis.call('ZCARD', KEYS[3]),
  finite(oldest) and text(tonumber(oldest)) or '', finite(scheduled) and text(tonumber(scheduled)) or '', text(now),
  leased, pause, counts[1], counts[2], counts[3], counts[4], counts[5], workers, finite(counts[6]) and counts[6] or '', type(waiting) == 'number' and waiting or 0,
  type(done) == 'number' and done or 0, limits.running,
  limits.rate, limits.rate > 0 and limits.per or 0, limits.rate > 0 and limits.burst or 0, limits.group,
  redis.call('ZLEXCOUNT', KEYS[14], '[~', '(\127'), finite(counts[7]) or 0 }
