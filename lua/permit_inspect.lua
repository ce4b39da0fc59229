-- Returns how much longer a permit will be held.
-- KEYS[1] the permits
-- ARGV[1] token
-- RETURNS n > 0 ms left   -2 not held by that token
-- USES kinds, fence
-- RETRY readOnly: changes nothing.
local now, score = clock(), redis.pcall('ZSCORE', KEYS[1], ARGV[1])
local ends = tonumber(type(score) == 'string' and score or 0)
return denied(score) or ends > now and ends - now or -2
