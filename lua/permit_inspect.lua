-- Returns how much longer a permit will be held or, if asked about any holder, how many are held.
-- KEYS[1] the permits
-- ARGV[1] token, or '' for any holder
-- RETURNS n >= 0 ms left   -2 not held (by that token)
--         for any holder: {ms until the last of them ends, how many there are}
-- RETRY readOnly: changes nothing.
if ARGV[1] ~= '' then
  local ends = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0)
  return ends > now and ends - now or -2
end
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
local ends = tonumber(last[2] or 0)
if ends <= now or not redis.call('ZSCORE', KEYS[1], '') then
  return -2
end
return { ends - now, redis.call('ZCOUNT', KEYS[1], '(' .. text(now), '+inf') }
