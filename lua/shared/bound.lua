-- DEFINES isFull, refuse
-- USES unpack, prelude, new, tasks, once, groups
-- For the scripts that enqueue: the most tasks that the producer lets the queue have, behind a '<' in ARGV[3].

local isFull, refuse -- nil where there is no bound

if #ARGV[3] > 2 then
  local room, adds -- for how many tasks there is room, and which IDs would add one

  -- Says whether the queue would have more tasks with those of this script: scheduled, due, leased and waiting ones.
  function isFull()
    room, adds = tonumber(string.match(ARGV[3], '<(%d+)$')) - redis.call('ZCARD', KEYS[1]) - redis.call('ZLEXCOUNT', KEYS[14], '[~', '(\127'), {}
    if room >= #ids then return false end
    local scores, fields, count = redis.call('ZMSCORE', KEYS[1], unpack(ids)), redis.call('HMGET', KEYS[4], unpack(ids)), 0
    local done = within and redis.call('ZMSCORE', KEYS[10], unpack(ids)) or {}
    for i, id in ipairs(ids) do
      local stays = scores[i] or waitsUntil(fields[i]) or isDone(id, scores[i], fields[i], done[i])
        or string.byte(fields[i] or '') == 42 and isDead(id, fields[i]) -- a dead letter that holds units
      if not stays and not adds[id] then adds[id], count = true, count + 1 end
    end
    return count > math.max(room, 0) -- there may be more than the bound: by another Queue's, or a periodic one
  end

  -- Returns what a script answers then: of each ID whether there is room for it alone, or it would add none.
  function refuse()
    local outcomes = { text(base) }
    for i, id in ipairs(ids) do outcomes[i + 1] = adds[id] and room < 1 and 9 or 10 end
    return outcomes
  end
end
