-- Acquires a lock, with a block of fences if they are wanted, or returns how much longer another token may hold it.
-- KEYS[1] the lock   KEYS[2] the last fence reserved, if fences are wanted
-- ARGV[1] token   ARGV[2] TTL in ms   with KEYS[2] only: ARGV[3] fences to reserve   ARGV[4] TTL of KEYS[2] in ms
-- and then tokens of the same call's last requests, which had no reply
-- RETURNS 0, or the first fence of the block, as text: the token holds the lock now, for the whole TTL
--         n > 0 another token holds it, for n ms at most
--         -1 KEYS[2] was not written by this library   -1-n it is held with n permits; of these two, nothing changed
-- RETRY never: the next request has another token and block, and replaces this one.
local token, ttl = ARGV[1], ARGV[2]

if not KEYS[2] and redis.call('SET', KEYS[1], token, 'NX', 'PX', ttl) then return 0 end
local holder, left = redis.pcall('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
if type(holder) == 'table' then return permitsInstead(holder) end
local replaced = false
for i = 2 * #KEYS + 1, #ARGV do replaced = replaced or holder == ARGV[i] end
if holder and not replaced then
  -- The key has no TTL: its holder died between SETNX and EXPIRE, or is a client that
  -- never sets a TTL. Give it one, so that the wait for it ends.
  if left == -1 then
    redis.call('PEXPIRE', KEYS[1], ttl)
    left = tonumber(ttl)
  end
  return math.max(left, 1)
end

local first = nextFence(replaced and tonumber(ARGV[3]) or 0) -- no caller has those; only the lock's holder reserves fences
if not first then return -1 end
-- The counter first: if the server rejects this write, the lock is not acquired either.
if KEYS[2] then redis.call('SET', KEYS[2], text(tonumber(first) + tonumber(ARGV[3]) - 1), 'PX', ARGV[4]) end
redis.call('SET', KEYS[1], token, 'PX', ttl)
return first
