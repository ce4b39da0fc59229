-- DEFINES headOff, wake
-- USES prelude, queue_idle
-- For the scripts that look at the queue's head.

-- Returns in how many microseconds the head is due, 0 if it is, and more than an hour if there is none before;
-- and its ID.
local function headOff()
  local found = redis.pcall('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES')
  local head = finite(found[2])
  if not head or head - now > 3600 then return 3600000001 end
  return math.max(math.ceil((head - now) * 1000000), 0), found[1]
end

-- Has idle clients see to the head if score, the earliest that this script has written, is that of the new one, or was
-- until this same script gave that task a later one. tasks is how many it has written.
local function wake(score, tasks)
  local head = score and finite(redis.pcall('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES')[2])
  if head and head >= score then seeTo(math.ceil((head - now) * 1000000), tasks or 1) end
end
