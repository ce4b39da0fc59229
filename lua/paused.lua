-- Says how long a queue's pause lasts.
-- KEYS[1] the queue's pause
-- RETURNS milliseconds, -1 for no end, -2 if it is not paused
-- RETRY readOnly: changes nothing.
return redis.call('PTTL', KEYS[1])
