-- DEFINES channelOf, firstInLine, tellFirst, wakeFirst, passOn, leave
-- USES fence
-- For the scripts that serve a lock's line: the processes that wait for it. KEYS[2] is the line, a sorted set. Of each
-- process it has the member <process>:<number of its wait>:<ms>, or <process>:<label>:<number>:<ms>, with the server's time at which it joined, in microseconds of
-- Unix time. The ms are for how long a release keeps the lock for the process, when it has woken it. A member begins with '*' if
-- its process listens by SSUBSCRIBE. The line is a hint: whatever fails on it, waiters poll.

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

-- Takes the first out of the line, and before it up to a thousand whose processes are gone. Wakes the process, and calls
-- reserve with its member and the ms for which the lock is to be kept for it. The next in line is told that it is the first then,
-- and when to come if the woken process does not. A process of an older build has a member without ms: it takes the lock as
-- any client does. Returns how many were woken: 1 or 0.
local function wakeFirst(reserve)
  for _ = 1, 1000 do
    local heads = {}
    if KEYS[2] then heads = redis.pcall('ZRANGE', KEYS[2], '0', '1') end
    local first, second = heads[1], heads[2]
    local notified = first and tell(first, first)
    if not notified then return 0 end -- where it is denied, those in line keep their places
    redis.pcall('ZREM', KEYS[2], first) -- before it reserves: after this a full server accepts the next write
    if notified > 0 then
      local ms = tonumber(string.match(first, ':%d+:(%d+)$') or '')
      if ms then
        ms = math.max(1, math.min(ms, 500))
        reserve(first, ms)
      end
      if second then tell(second, text(ms or 60000)) end
      return 1
    end
  end
  return 0
end

-- Ends a plain lock's hold or reservation: the lock is kept for the first in line, or free. Returns how many processes were woken.
local function passOn()
  local reserved = false
  local woken = wakeFirst(function(member, ms) reserved = redis.call('SET', KEYS[1], '>' .. member, 'PX', text(ms)) end)
  if not reserved then redis.call('DEL', KEYS[1]) end
  return woken
end

-- Takes a member, '' for none, out of the line. Returns whether it was the first.
local function leave(member)
  if not KEYS[2] or member == '' then return false end
  local first = firstInLine() == member
  redis.pcall('ZREM', KEYS[2], member)
  return first
end
