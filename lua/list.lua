-- Lists scheduled or leased tasks, in the order of their scores, from behind the last one of the page
-- before. Reads a thousand or so at most, and stops early at a megabyte.
-- KEYS[5] the leased tasks
-- ARGV[1] n, at most 250   ARGV[2] score and ARGV[3] id of that last one, or '' and ''
-- ARGV[4] the state: 1 scheduled   3 leased   ARGV[5] the most bytes of a payload, as in payload.lua
-- RETURNS { score and id of the last task read if there may be more, else '' and '',
--           then per task: id, score, attempt, payload }
-- RETRY readOnly: changes nothing.
local n, wanted, reply, examined, size, more = tonumber(ARGV[1]), tonumber(ARGV[4]), { '', '' }, 0, 0, true

-- What is scheduled is in the queue beside what is leased; what is leased has a list of its own.
local function count(score) return redis.call('ZCOUNT', KEYS[1], '-inf', score) end
local function entry(rank) return redis.call('ZRANGE', KEYS[1], rank, rank) end
local function range(from, to) return redis.call('ZRANGE', KEYS[1], from, to, 'WITHSCORES') end
if wanted == 3 then
  function count(score) return redis.call('ZCOUNT', KEYS[5], '-inf', score) end
  function entry(rank) return redis.call('ZRANGE', KEYS[5], rank, rank) end
  function range(from, to) return redis.call('ZRANGE', KEYS[5], from, to, 'WITHSCORES') end
end
local first = math.max(behind(ARGV[2], ARGV[3], count, entry), count(text(now)))
redis.call('ZCARD', KEYS[1])
redis.call('HLEN', KEYS[2]) -- check the types, even if there are no tasks
redis.call('HLEN', KEYS[4])

repeat
  local from, wants = first + examined, examined == 0 and n or 250
  local found, ids = range(string.format('%.0f', from), string.format('%.0f', from + wants - 1)), {}
  for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
  local scores, field = #ids > 0 and redis.call('ZMSCORE', KEYS[1], unpack(ids)) or {}, reader(fieldsOf, ids, 250)
  for i, id in ipairs(ids) do
    if #reply == 2 + 4 * n or size >= 1048576 then break end
    local task, score = live(field(i)), finite(scores[i])
    examined, reply[1], reply[2] = examined + 1, found[2 * i], id
    if task and score and id ~= '' and stateOf(task, score) == wanted then
      local payload, read = payloadUpTo(ARGV[5], id)
      task, score = resolve(task, score)
      reply[#reply + 1], reply[#reply + 2], reply[#reply + 3], reply[#reply + 4] = id, text(score), string.format('%.0f', task.attempt), payload
      size = size + read + #id + #(field(i) or '')
    end
  end
  more = #ids == wants or from + #ids > first + examined
until not more or #reply == 2 + 4 * n or size >= 1048576 or examined >= 1000
if not more then reply[1], reply[2] = '', '' end
return reply
