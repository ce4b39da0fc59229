-- Releases a lock, or the permits of a name, whatever its tokens, and reserves what is free for the next in line.
-- KEYS[1] the lock, or the permits   KEYS[2] their line
-- ARGV[1] the label of an owner, of whom alone something is released; '' for any holder
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
local holders = {}
for _, token in ipairs(tokens) do
  local isOwned = ARGV[1] == '' or #token == #ARGV[1] + 27 and string.sub(token, 1, #ARGV[1] + 1) == ARGV[1] .. ':'
  if isOwned and not isReservation(token) then holders[#holders + 1] = token end
end
if ARGV[1] == '' or #holders > 0 and not number then
  redis.call('DEL', KEYS[1])
  if number then passPermitOn(clock(), number) else passOn() end
elseif number then
  for _, token in ipairs(holders) do
    if removePermit(clock(), token) then passPermitOn(clock(), number) end
  end
end
return holders
