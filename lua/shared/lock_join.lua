-- DEFINES waits
-- USES fence, lock_line
-- For the scripts that let a process join a lock's line.

-- Says whether a member's process listens; nil if that cannot be known.
local function listens(member)
  local sharded, channel = string.byte(member) == 42, channelOf(member)
  local counted = sharded and redis.pcall('PUBSUB', 'SHARDNUMSUB', channel) or not sharded and redis.pcall('PUBSUB', 'NUMSUB', channel)
  return counted[2] and counted[2] > 0
end

-- Fails on a replica, by a write that changes nothing: a client that is still connected to a demoted primary is to go.
local function failOnReplica()
  local removed = redis.pcall('ZREM', KEYS[2], '')
  if type(removed) == 'table' and string.find(removed.err or '', 'READONLY', 1, true) then redis.call('ZREM', KEYS[2], '') end
end

-- Gives a member a place in line, unless it has one: that of its score, or the last if score is ''. Returns nil if it is denied
-- that, or the member could not be woken there, and -2 if its process does not listen. Scores rise even if the server's clock is set
-- back, by a day at most.
local function join(member, score)
  local known = redis.pcall('ZSCORE', KEYS[2], member)
  if not known then
    local heard = listens(member)
    if not heard then return nil, heard == false and -2 end
    if score == '' then
      local time, last = redis.call('TIME'), tonumber(redis.pcall('ZRANGE', KEYS[2], '-1', '-1', 'WITHSCORES')[2] or 0)
      local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
      score = text(last < now + 864e8 and math.max(now, last + 1) or now)
    end
    local added = redis.pcall('ZADD', KEYS[2], score, member)
    known = type(added) == 'number' and score
  end
  return type(known) == 'string' and known
end

-- Takes up to a thousand members out of the head of the line whose processes are gone. Returns how many there were.
local function dropGone()
  for n = 0, 999 do
    local first = firstInLine()
    if not first or listens(first) ~= false or type(redis.pcall('ZREM', KEYS[2], first)) ~= 'number' then return n end
  end
  return 1000
end

-- Returns what an acquisition answers that does not take the lock, which another client has for so many ms: that and, unless it
-- only tries, how many are before the member in line (-1 if it is not in line, -2 if its process does not listen here), and its score.
local function waits(left, how, member, score)
  if how == '' then return left end
  if dropGone() > 0 then tellFirst(left) end
  local known, reason = join(member, score)
  failOnReplica() -- not before: after a write that a full server accepts, it would accept more
  if not known then return { left, reason or -1, '' } end
  if redis.call('PTTL', KEYS[2]) < 30000 then redis.pcall('PEXPIRE', KEYS[2], '60000') end
  local ahead = redis.pcall('ZCOUNT', KEYS[2], '-inf', '(' .. known)
  return { left, type(ahead) == 'number' and ahead or 0, known }
end
