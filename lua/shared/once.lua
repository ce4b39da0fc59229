-- DEFINES policy, within, isDead, isDone
-- USES prelude, state
-- For the scripts that enqueue, with their arguments.
local policy, within = ARGV[1], nil
if string.sub(policy, 1, 5) == 'once:' then
  within = tonumber(string.sub(policy, 6)) -- for how many seconds what is done keeps its ID
  policy = 'once'
end

-- Says whether a task without a score is a dead letter. A field may still say so where a foreign program has put the task back, and removed it.
local function isDead(id, field) return (decode(field) or {}).dead and redis.call('ZSCORE', KEYS[3], id) end

-- Says whether an ID is not to be enqueued since it is done.
local function isDone(id, score, field, done)
  local task = decode(field) or {}
  local waits = task.due and not task.lease -- in its group
  return within and not score and (finite(done) or -math.huge) > now - within and not waits and not isDead(id, field)
end
