-- Acquires a lock that is free or reserved for the process, with a block of fences if they are wanted, or joins the line of those
-- that wait for it.
-- KEYS[1] the lock   KEYS[2] its line, if ARGV[4] or a fence is given   KEYS[3] the last fence reserved, if fences are wanted
-- ARGV[1] token   ARGV[2] TTL in ms   ARGV[3] fences to reserve   ARGV[4] the process's member in line, '' if it has none
-- ARGV[5] the member's score, '' for a new one   ARGV[6] 'join' to join the line if it is not acquired, or ''
-- ARGV[7...] tokens of the same call's last requests, which had no reply
-- RETURNS 0, or the first fence of the block, as text: the token holds the lock now, for the whole TTL
--         {ms that another client has it at most; place in line, from 0, -1 for none, -2 if it does not listen; score}, or the
--         first of these where ARGV[6] is '': not acquired
--         -1 KEYS[3] was not written by this library   -1-n it is held with n permits; of these two, nothing changed
-- USES kinds, fence, lock_line, lock_join
-- RETRY never: the next request has another token, member and block, and replaces this one.
local token, ttl, member, how = ARGV[1], ARGV[2], ARGV[4] or '', ARGV[6] or ''

local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return permitsInstead(holder) end
local replaced, reserved = false, member ~= '' and holder == '>' .. member
for i = 7, #ARGV do replaced = replaced or holder == ARGV[i] end
if holder and not replaced and not reserved then
  local left = redis.call('PTTL', KEYS[1])
  -- The key has no TTL: its holder died between SETNX and EXPIRE, or is a client that
  -- never sets a TTL. Give it one, so that the wait for it ends.
  if left == -1 then
    redis.call('PEXPIRE', KEYS[1], ttl)
    left = tonumber(ttl)
  end
  return waits(math.max(left, 1), how, member, ARGV[5])
end

local first = nextFence(replaced and tonumber(ARGV[3]) or 0) -- no caller has those; only the lock's holder reserves fences
if not first then return -1 end
-- The counter first: if the server rejects this write, the lock is not acquired either.
if KEYS[3] then redis.call('SET', KEYS[3], text(tonumber(first) + tonumber(ARGV[3]) - 1), 'PX', fenceLife) end
redis.call('SET', KEYS[1], token, 'PX', ttl)
if not reserved and leave(member) then tellFirst(tonumber(ttl)) end -- the release has told the next in line otherwise
return first
