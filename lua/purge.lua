-- Removes the queue with all its tasks and dead letters.
-- KEYS[1] the queue   KEYS[2] its tasks   KEYS[3] the dead letters
-- RETURNS the number of keys removed
return redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
