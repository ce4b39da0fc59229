-- Prelude of enqueue, before fields.lua: a batch of new tasks is common, and takes a fourth less of the
-- server's time if the functions that follow are not defined, and nothing is made for each task.
local function batch()
  local new, payloads, empty, outcomes, known, ids, first = {}, {}, {}, {}, {}, {}, nil
  for i = 4, #ARGV, 3 do
    local n, id, due, payload = (i - 1) / 3, ARGV[i], dueAt(ARGV[i + 1]), ARGV[i + 2]
    if known[id] then return nil end
    known[id], ids[n], outcomes[n] = true, id, 1
    new[2 * n - 1], new[2 * n] = text(due), id
    if payload == '' then
      empty[#empty + 1] = id
    else
      payloads[#payloads + 1] = id
      payloads[#payloads + 1] = payload
    end
    if not first or due < first then first = due end
  end
  local scores, fields = redis.call('ZMSCORE', queue, unpack(ids)), {}
  if redis.call('HLEN', states) > 0 then fields = redis.call('HMGET', states, unpack(ids)) end
  for i = 1, #ids do
    if scores[i] or fields[i] then return nil end
  end
  local left = redis.call('HLEN', tasks) > 0 -- perhaps payloads of these IDs, see enqueue.lua
  redis.call('ZCARD', KEYS[3])
  need('HSET', tasks)
  need('HDEL', tasks)
  redis.call('ZADD', queue, unpack(new))
  if #payloads > 0 then redis.call('HSET', tasks, unpack(payloads)) end
  if #empty > 0 and left then redis.call('HDEL', tasks, unpack(empty)) end
  wake(ARGV[2], first)
  outcomes[#ids + 1] = text(base + #ids * 0.000001)
  return outcomes
end

local added = #ARGV > 6 and batch()
if added then return added end
