-- DEFINES isFull, refuse
-- USES unpack, prelude, new, tasks, groups
-- For the scripts that enqueue: the most tasks that the producer lets the queue have, behind a '<' in ARGV[3].

-- Says whether the queue would have more tasks with those of this script: scheduled, due, leased and waiting ones. IDs that are there add none.
local function isFull()
  local most = #ARGV[3] > 2 and tonumber(string.match(ARGV[3], '<(%d+)$'))
  if not most then return false end
  local left = most - redis.call('ZCARD', KEYS[1]) - redis.call('ZLEXCOUNT', KEYS[14], '[~', '(\127')
  if left >= #ids then return false end
  local scores, fields = redis.call('ZMSCORE', KEYS[1], unpack(ids)), redis.call('HMGET', KEYS[4], unpack(ids))
  for i = 1, #ids do
    if not scores[i] and not waitsUntil(fields[i]) then left = left - 1 end
  end
  return left < 0
end

-- Returns what a script answers then.
local function refuse()
  local outcomes = { text(base) }
  for i = 1, #ids do outcomes[i + 1] = 9 end
  return outcomes
end
