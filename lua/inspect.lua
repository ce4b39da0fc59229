-- Returns how much longer a lock will be held.
-- KEYS[1] the lock
-- ARGV[1] token, or '' for any holder
-- RETURNS n >= 0 ms left   -1 held without TTL   -2 not held (by that token)
-- RETRY readOnly: changes nothing.
local holder = redis.call('GET', KEYS[1])
if not holder or (ARGV[1] ~= '' and ARGV[1] ~= holder) then
  return -2
end
return redis.call('PTTL', KEYS[1])
