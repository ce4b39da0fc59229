-- DEFINES denied, permitsInstead, isReservation
-- For the scripts of locks. KEYS[1] is a plain lock, a string: its holder's token. Or it is permits, a sorted set: of
-- each permit that is held the token, with the time at which it ends, in ms of Unix time; and '' with -n, if there are n
-- permits. The key lives as long as its last permit. A permit that has ended is not held, whether it was removed or not.
-- A token holds nothing at a key of another type than its own kind's. In place of a token there may be a reservation: '>' and
-- the member of a process in line (see lock_line.lua), for which the lock or the permit is kept until that process comes.

-- Returns reply if it is an error other than that KEYS[1] is of another type.
local function denied(reply)
  return type(reply) == 'table' and not string.find(reply.err, 'wrong kind of value', 1, true) and reply
end

-- Returns -1-n if KEYS[1], of which GET has failed, is n permits. Otherwise it returns the failure.
local function permitsInstead(failed)
  if denied(failed) then return failed end
  local known = tonumber(redis.call('ZSCORE', KEYS[1], '') or 0)
  return known <= -2 and known >= -1000 and known == math.floor(known) and known - 1 or failed
end

-- Tells a reservation from the token of any client.
local function isReservation(token) return string.find(token, '^>%*?[^:]+:.*%d+:%d+$') ~= nil end
