-- Lists due tasks, earliest first, from behind the last one of the page before. Stops early at a megabyte.
-- ARGV[1] n, at most 250   ARGV[2] score and ARGV[3] id of that last one, or '' and ''
-- ARGV[4] '1' to leave out versions whose place in the queue is still that of the lease before them: a
--         page that ends with one says nothing about where the next one begins
-- ARGV[5] the most bytes of a payload, as in payload.lua
-- RETURNS { score and id of the last task read if there may be more, else '' and '',
--           then per task: id, score, attempt, payload; and with '1' what story says }
-- USES read, page, payload, due
-- RETRY readOnly: changes nothing.
local ready, ids, more = due(tonumber(ARGV[1]), behind(ARGV[2], ARGV[3]))
local reply, size = { more and ids.score or '', more and ids[#ids] or '' }, 0
for i, task in ipairs(ready) do
  if not (task.elsewhere and ARGV[4] == '1') then
    local payload, read = payloadUpTo(ARGV[5], task.id)
    append(reply, task.id, task.score, string.format('%.0f', task.attempt), payload)
    if ARGV[4] == '1' then append(reply, story(task.id, task)) end
    size = size + read + #task.id
  end
  if size >= 1048576 and i < #ready then
    reply[1], reply[2] = redis.call('ZSCORE', KEYS[1], task.id), task.id
    break
  end
end
return reply
