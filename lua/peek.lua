-- Looks at due tasks, earliest first. Changes nothing.
-- ARGV[1] n, at most 500
-- RETURNS { tasks looked at, then per task: id, score, attempt, payload }
local ready, seen = due(tonumber(ARGV[1]))
local reply = { #seen }
for _, task in ipairs(ready) do
  reply[#reply + 1] = task.id
  reply[#reply + 1] = text(task.score)
  reply[#reply + 1] = string.format('%.0f', task.attempt)
  reply[#reply + 1] = task.payload
end
return reply
