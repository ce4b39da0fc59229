-- Prelude of the scripts that let a process join a lock's line, behind line.lua.

local function listens(member)
  local channel = channelOf(member)
  if string.byte(member) == 42 then return (redis.pcall('PUBSUB', 'SHARDNUMSUB', channel)[2] or 0) > 0 end
  return (redis.pcall('PUBSUB', 'NUMSUB', channel)[2] or 0) > 0
end

-- Gives a member a place in line, unless it has one: that of its score, or the last if score is ''. Returns nil if the
-- member could not be woken there, or is denied it. Scores rise even if the server's clock is set back, by a day at most.
local function join(member, score)
  local known = redis.pcall('ZSCORE', KEYS[2], member)
  if not known and listens(member) then
    if score == '' then
      local time, last = redis.call('TIME'), tonumber(redis.pcall('ZRANGE', KEYS[2], '-1', '-1', 'WITHSCORES')[2] or 0)
      local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
      score = text(last < now + 864e8 and math.max(now, last + 1) or now)
    end
    known = type(redis.pcall('ZADD', KEYS[2], score, member)) == 'number' and score
  end
  return type(known) == 'string' and known
end

-- Returns what an acquisition answers that does not take the lock, which its holder has for so many ms (0 if it is free):
-- that and, unless it only tries, how many are before the member in line (-1 if it is not in line), and its score.
local function waits(left, how, member, score)
  if how == '' then return left end
  local known = member ~= '' and KEYS[2] and join(member, score)
  if not known then return { left, -1, '' } end
  if redis.call('PTTL', KEYS[2]) < 30000 then redis.pcall('PEXPIRE', KEYS[2], '60000') end
  local ahead = redis.pcall('ZCOUNT', KEYS[2], '-inf', '(' .. known)
  return { left, type(ahead) == 'number' and ahead or 0, known }
end

-- Ends the wait of a member that has the lock now, for ttl ms, and tells the first in line.
local function served(member, ttl)
  leave(member)
  tellFirst(ttl)
end
