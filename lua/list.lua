-- Lists scheduled or leased tasks, dead letters, or what is done, in the order of their scores, behind the last one of the page before: it reads
-- a thousand or so at most, and stops early at a megabyte.
-- KEYS[3] the dead letters   KEYS[5] the leased tasks   KEYS[7] the last errors   KEYS[10] and KEYS[11] see done.lua
-- ARGV[1] n, at most 250
-- ARGV[2] score and ARGV[3] id of that last one, or '' and ''   ARGV[4] the state: 1 scheduled   3 leased   4 dead   5 done
-- ARGV[5] the most bytes of a payload, as in payload.lua
-- RETURNS { score and id of the last one read if there may be more, else '' and ''; then of each: id, score (time of death, or when it was finished),
--           attempt, payload, and what story says }
-- USES unpack, prelude, read, state, fields, page, lists, payload
-- RETRY readOnly: changes nothing.
local n, reply, listed, examined, size, more = tonumber(ARGV[1]), { '', '' }, 0, 0, 0, true

local first = math.max(behind(ARGV[2], ARGV[3]), wanted < 4 and count(text(now)) or 0)

-- Returns an entry if it is to be listed, with its score. A dead letter whose task a foreign producer has put back is not, and nothing that
-- is done and has been enqueued again.
local function fitting(id, field, score, place)
  if wanted == 4 then return not score and (decode(field) or { attempt = 0 }), place end
  if wanted == 5 then return not score and not (decode(field) or {}).dead and { attempt = 0 }, place end
  local task = live(field)
  score = finite(score)
  if not task or not score or id == '' or stateOf(task, score) ~= wanted then return end
  task, score = resolve(task, score)
  return task, text(score)
end

-- Returns the attempt of a task, and what upTo does.
local function shown(id, task)
  if wanted == 5 then return doneOf(ARGV[5], id) end
  return string.format('%.0f', task.attempt), payloadUpTo(ARGV[5], id)
end
repeat
  local from, wants = first + examined, examined == 0 and n or 250
  local found, ids = range(string.format('%.0f', from), string.format('%.0f', from + wants - 1)), {}
  for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
  local scores, field = #ids > 0 and redis.call('ZMSCORE', KEYS[1], unpack(ids)) or {}, reader(fieldsOf, ids, 250)
  for i, id in ipairs(ids) do
    if listed == n or size >= 1048576 then break end
    examined, reply[1], reply[2] = examined + 1, found[2 * i], id
    local task, score = fitting(id, field(i), scores[i], found[2 * i])
    if task then
      local attempt, payload, read = shown(id, task)
      append(reply, id, score, attempt, payload, story(id, task, wanted))
      listed, size = listed + 1, size + read + #id + #(field(i) or '') + #reply[#reply - 3]
    end
  end
  more = #ids == wants or from + #ids > first + examined
until not more or listed == n or size >= 1048576 or examined >= 1000
if not more then reply[1], reply[2] = '', '' end
return reply
