-- Lists due tasks, earliest first.
-- ARGV[1] n, at most 250   ARGV[2] how many to skip
-- RETURNS { tasks read if there may be more, else 0, then per task: id, score, attempt, payload }
-- RETRY readOnly: changes nothing.
local ready, ids, more = due(tonumber(ARGV[1]), ARGV[2])
local reply = { more and #ids or 0 }
for _, task in ipairs(ready) do
  reply[#reply + 1] = task.id
  reply[#reply + 1] = task.score
  reply[#reply + 1] = string.format('%.0f', task.attempt)
  reply[#reply + 1] = task.payload
end
return reply
