-- Pauses a queue, or what has been paused for another time. That may be shorter: then waiters are told of the head, and
-- learn of the new end when they look.
-- KEYS[6] the queue's pause: a string that lives as long as it lasts
-- ARGV[1] wake channel   ARGV[2] for how long, in ms, or 0 for no end
-- RETURNS 1
-- RETRY never: between two runs the queue may have been resumed.
redis.call('ZCARD', KEYS[1]) -- a queue with several shards has a string there
need('SET', KEYS[6])
local was = redis.call('DEL', KEYS[6]) -- after this write a full server accepts the next one
if ARGV[2] == '0' then redis.call('SET', KEYS[6], '1') else redis.call('SET', KEYS[6], '1', 'PX', ARGV[2]) end
if was == 1 then
  local off = outlook(ARGV[1])
  if off <= 3600000000 then announce(ARGV[1], math.max(off, 0), waiters(ARGV[1])) end
end
return 1
