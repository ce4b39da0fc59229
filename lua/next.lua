-- Returns how long it is until the earliest task is due.
-- RETURNS microseconds, 0 if it is due   -1 the queue is empty, or that is more than an hour away
-- RETRY readOnly: changes nothing.
local head = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')[2]
if not head then return -1 end
local score = finite(head)
if not score then return string.sub(head, 1, 1) == '-' and 0 or -1 end
if score - now > 3600 then return -1 end
return math.max(math.ceil((score - now) * 1000000), 0)
