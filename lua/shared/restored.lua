-- DEFINES restoreQueued
-- USES prelude, groups, fields
-- For restore.

-- Puts a task into the queue, or among those that wait in its group: those have no attempt. Returns when it is due; nil if it waits.
local function restoreQueued(id, due, attempt, holds)
  local group = groupOf(holds)
  if group then enterGroup(group, due, id, holds) else redis.call('ZADD', KEYS[1], text(due), id) end
  if group and not redis.call('ZSCORE', KEYS[1], id) then return nil end
  store(id, { unseen = 0, holds = holds }, attempt)
  return due
end
