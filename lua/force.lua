-- Releases a lock, or all permits of a name, whatever its tokens, and wakes the next in line.
-- KEYS[1] the lock, or the permits   KEYS[2] their line
-- RETURNS the tokens that held it   an empty list: it was not held
-- RETRY never: if the script runs twice, the second run may release the locks of the next holders.
local holder = redis.pcall('GET', KEYS[1])
if not holder then return {} end
local tokens = { holder }
if type(holder) == 'table' then
  local known = permitsInstead(holder)
  if type(known) == 'table' then return denied(known) or {} end -- another library's sorted set
  tokens = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(clock()), '+inf')
end
redis.call('DEL', KEYS[1])
wake()
return tokens
