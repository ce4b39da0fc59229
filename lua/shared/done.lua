-- DEFINES forgetDone, remember
-- USES unpack, prelude
-- For the scripts that remember tasks which are finished, or forget them. Where that fails, nothing
-- else does.
--   KEYS[10] what is done: zset, id -> when it was finished, in Unix seconds
--   KEYS[11] what else is known of it: hash, id -> '<attempt> <result>'; nothing of a first attempt without a result

-- Forgets what was finished more than age seconds ago: a thousand at most, or 250 where there are results, since to free many large ones takes
-- long. Returns whether there may be more.
local function forgetDone(age)
  local most = redis.pcall('HLEN', KEYS[11]) == 0 and 1000 or 250
  local over = redis.pcall('ZRANGEBYSCORE', KEYS[10], '-inf', text(now - age), 'LIMIT', '0', tostring(most))
  for from = 1, #over, 250 do
    redis.pcall('ZREM', KEYS[10], unpack(over, from, math.min(from + 249, #over)))
    redis.pcall('HDEL', KEYS[11], unpack(over, from, math.min(from + 249, #over)))
  end
  return #over == most
end

-- Remembers tasks for age seconds, as finish removes them; and forgets others. Each has an id, an attempt, as text, and perhaps a result.
-- Before the first write of the script a full server refuses results: they are dropped. Returns whether any were.
local function remember(tasks, age, finish)
  local at, scores, kept, short, plain, hasResults = text(now), {}, {}, {}, {}, false
  for i, task in ipairs(tasks) do
    scores[2 * i - 1], scores[2 * i] = at, task.id
    if task.attempt == '1' and not task.result then
      plain[#plain + 1] = task.id
    else
      kept[#kept + 1], kept[#kept + 2] = task.id, task.attempt .. ' ' .. (task.result or '')
      short[#short + 1], short[#short + 2] = task.id, task.attempt .. ' '
    end
    hasResults = hasResults or task.result
  end
  local refused = #kept > 0 and type(redis.pcall('HSET', KEYS[11], unpack(kept))) == 'table'
  finish()
  redis.pcall('ZADD', KEYS[10], unpack(scores))
  if refused then redis.pcall('HSET', KEYS[11], unpack(short)) end
  if #plain > 0 and redis.pcall('HLEN', KEYS[11]) ~= 0 then redis.pcall('HDEL', KEYS[11], unpack(plain)) end -- of an earlier time
  forgetDone(age)
  return refused and hasResults
end
