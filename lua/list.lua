-- Lists scheduled, due or leased tasks, dead letters, or what is done, in the order of their scores or from the last one on, behind the last one of
-- the page before: it reads a thousand or so at most, and stops early at a megabyte.
-- KEYS[3] the dead letters   KEYS[5] the leased tasks   KEYS[7] the last errors   KEYS[9] the queue's counts   KEYS[10] and KEYS[11] see done.lua
-- KEYS[12] what it lists: the queue, for scheduled and due tasks, or KEYS[5], KEYS[3] or KEYS[10]
-- ARGV[1] n, at most 250
-- ARGV[2] score and ARGV[3] id of that last one, or '' and ''   ARGV[4] the state: 1 scheduled   2 due   3 leased   4 dead   5 done
-- ARGV[5] the most bytes of a payload, as in payload.lua   ARGV[7] as get's second   ARGV[8] 'newest' from the last one on, or ''
--         ARGV[6] '' to leave out versions whose place in the queue is still that of the ended
--         lease before them: a page that ends with one does not say where the next one begins. 'due' lists those
--         that are due, 'all' also those that are due later, among what is due
-- RETURNS { score and id of the last one read if there may be more, else '' and ''; then of each: id, score (time of death, or when it was finished),
--           attempt, payload, and what story says }
-- USES unpack, prelude, read, page, payload
-- RETRY readOnly: changes nothing.
local n, reply, listed, examined, size, more = tonumber(ARGV[1]), { '', '' }, 0, 0, 0, true
redis.call('ZCARD', KEYS[1]) -- check the types, even if there is nothing to be listed
redis.call('HLEN', KEYS[2])
redis.call('HLEN', KEYS[4])
-- What is scheduled is in the queue beside what is leased, and behind what is due; what is remembered is behind what is to be forgotten.
between((wanted == 1 or wanted == 3) and count(text(now)) or wanted == 5 and count(text(doneAfter(ARGV[7]))) or 0, wanted == 2 and count(text(now)))

-- Returns the attempt of a task, and what upTo does.
local function shown(id, task)
  if wanted == 5 then return doneOf(ARGV[5], id) end
  return string.format('%.0f', task.attempt) .. (task.holds or ''), payloadUpTo(ARGV[5], id)
end
repeat
  local found, ids = entries(examined, examined == 0 and n or 250), {}
  for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
  local scores, field = #ids > 0 and redis.call('ZMSCORE', KEYS[1], unpack(ids)) or {}, reader(fieldsOf, ids, 250)
  local before = examined
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
  more = isMore(examined) or before + #ids > examined
until not more or listed == n or size >= 1048576 or examined >= 1000
if not more then reply[1], reply[2] = '', '' end
return reply
