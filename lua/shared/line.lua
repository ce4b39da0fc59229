-- Prelude of the scripts that serve a lock's line: the processes that wait for it. KEYS[2] is the line, a sorted set. Of each
-- process it has the member <process>:<number of its wait>, with the server's time at which it joined, in microseconds of Unix
-- time. A member begins with '*' if its process listens by SSUBSCRIBE. The line is a hint: whatever fails on it, waiters poll.

local function channelOf(member)
  return string.sub(KEYS[2], 1, -5) .. 'wake:' .. (string.match(member, '^%*?([^:]*):') or '')
end

-- Publishes a message for a member: itself if it is woken, or how many ms the lock may be another's, to the first in line. Returns
-- how many clients were notified, nil if that is denied.
local function tell(member, message)
  local sharded, channel = string.byte(member) == 42, channelOf(member)
  local notified = sharded and redis.pcall('SPUBLISH', channel, message) or not sharded and redis.pcall('PUBLISH', channel, message)
  return type(notified) == 'number' and notified or nil
end

local function firstInLine() return KEYS[2] and redis.pcall('ZRANGE', KEYS[2], '0', '0')[1] end

local function tellFirst(left)
  local first = firstInLine()
  if first then tell(first, text(left)) end
end

-- Wakes the first in line whose process listens, and takes it out. The next one learns that it is the first: the woken process may
-- be stopped. Returns how many were woken: 1 or 0.
local function wake()
  for _ = 1, 16 do
    local first = firstInLine()
    local notified = first and tell(first, first)
    if not notified then return 0 end -- where it is denied, those in line keep their places
    redis.pcall('ZREM', KEYS[2], first)
    if notified > 0 then
      tellFirst(60000)
      return 1
    end
  end
  return 0
end

-- Takes a member, '' for none, out of the line. Returns whether it was the first.
local function leave(member)
  if not KEYS[2] or member == '' then return false end
  local first = firstInLine() == member
  redis.pcall('ZREM', KEYS[2], member)
  return first
end
