-- Last prelude of reshard_take.

-- Closes the shard for every other script.
local function close()
  if redis.call('TYPE', KEYS[1]).ok ~= 'string' then
    if redis.call('ZCARD', KEYS[1]) > 0 then redis.call('RENAME', KEYS[1], KEYS[5]) end
  end
  redis.call('DEL', KEYS[7])
  redis.call('SET', KEYS[1], ARGV[4])
  redis.call('HSET', KEYS[7], 'epoch', ARGV[1])
  publish(ARGV[5], '1 1 0') -- those who wait for its tasks look, and learn of it
end

-- Removes what is in transit: it was put.
local function confirm()
  local ids = redis.call('ZRANGE', KEYS[6], '0', '-1')
  if #ids == 0 then return end
  redis.call('DEL', KEYS[6])
  redis.call('HDEL', KEYS[2], unpack(ids))
  redis.call('HDEL', KEYS[4], unpack(ids))
  if redis.call('EXISTS', KEYS[3], KEYS[5]) == 0 then redis.call('DEL', KEYS[2], KEYS[4]) end
end

-- Returns IDs and scores of tasks or, if dead is not '', of dead letters that may be taken.
local function candidates(dead)
  local ids, scores, found = {}, {}, {}
  if ARGV[3] ~= '0' then
    if dead == '' then
      found = redis.call('ZRANGE', KEYS[5], '0', ARGV[3] - 1, 'WITHSCORES')
    else
      found = redis.call('ZRANGE', KEYS[3], '0', ARGV[3] - 1, 'WITHSCORES')
    end
    for i = 1, #found, 2 do ids[#ids + 1], scores[#scores + 1] = found[i], found[i + 1] end
    return ids, scores
  end
  if dead == '' then
    found = redis.call('ZMSCORE', KEYS[5], unpack(ARGV, 6))
  else
    found = redis.call('ZMSCORE', KEYS[3], unpack(ARGV, 6))
  end
  for i = 1, #ARGV - 5 do
    if found[i] then ids[#ids + 1], scores[#scores + 1] = ARGV[i + 5], found[i] end
  end
  return ids, scores
end

-- Says whether all that is named has left the shard, so that whatever is in transit may be left to others: if each
-- operation put and confirmed it, those of many clients would keep each other from coming to an end.
local function areGone()
  if ARGV[3] ~= '0' or #candidates('') + #candidates('dead') > 0 then return false end
  for _, score in ipairs(redis.call('ZMSCORE', KEYS[6], unpack(ARGV, 6))) do
    if score then return false end
  end
  return true
end

-- Moves tasks to those in transit, no more than make a megabyte of payload.
local function transfer(dead, ids, scores)
  payloadsOf(ids)
  local entries = {}
  for i, id in ipairs(ids) do entries[2 * i - 1], entries[2 * i] = scores[i], id end
  if dead == '' then
    redis.call('ZREM', KEYS[5], unpack(ids))
  end
  redis.call('ZREM', KEYS[8], unpack(ids))
  redis.call('ZREM', KEYS[3], unpack(ids)) -- also of a task: a foreign producer may have put a dead letter back
  redis.call('ZADD', KEYS[6], unpack(entries))
end

-- Returns that there is nothing to put.
local function nothing()
  return { 0, 0, redis.call('ZCARD', KEYS[3]) + redis.call('ZCARD', KEYS[5]) + redis.call('ZCARD', KEYS[6]), {}, {}, {}, {} }
end

-- Returns what is in transit: all of it, since all of it is confirmed together.
local function batch(seq)
  local found, ids, scores = redis.call('ZRANGE', KEYS[6], '0', '-1', 'WITHSCORES'), {}, {}
  for i = 1, #found, 2 do ids[#ids + 1], scores[#scores + 1] = found[i], found[i + 1] end
  if #ids == 0 then return nothing() end
  local left = redis.call('ZCARD', KEYS[5]) + redis.call('ZCARD', KEYS[3])
  local dead = redis.call('HGET', KEYS[7], 'kind') == 'dead' and 1 or 0
  local payloads, fields = redis.call('HMGET', KEYS[2], unpack(ids)), redis.call('HMGET', KEYS[4], unpack(ids))
  for i = 1, #ids do payloads[i], fields[i] = payloads[i] or '', fields[i] or '' end
  return { tonumber(seq), dead, left, ids, scores, payloads, fields }
end
