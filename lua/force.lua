-- Releases a lock, or all permits of a name, whatever its tokens, and reserves it, or one of them, for the next in line.
-- KEYS[1] the lock, or the permits   KEYS[2] their line
-- ARGV[1] the label of an owner, without whom nothing is released; '' for any holder
-- RETURNS the tokens that held it   an empty list: it was not held, or only by others
-- USES kinds, fence, lock_line, permits
-- RETRY never: if the script runs twice, the second run may release the locks of the next holders.
local holder = redis.pcall('GET', KEYS[1])
if not holder then return {} end
local tokens, number = { holder }, nil
if type(holder) == 'table' then
  local known = permitsInstead(holder)
  if type(known) == 'table' then return denied(known) or {} end -- another library's sorted set
  number = known + 1
  tokens = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(clock()), '+inf')
end
local isOwned = ARGV[1] == ''
for _, token in ipairs(tokens) do
  isOwned = isOwned or not isReservation(token) and #token == #ARGV[1] + 27 and string.sub(token, 1, #ARGV[1] + 1) == ARGV[1] .. ':'
end
if not isOwned then return {} end
redis.call('DEL', KEYS[1])
if number then passPermitOn(clock(), number) else passOn() end
local holders = {}
for _, token in ipairs(tokens) do
  if not isReservation(token) then holders[#holders + 1] = token end
end
return holders
