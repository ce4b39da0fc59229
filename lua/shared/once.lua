-- DEFINES policy, within, isDone
-- USES prelude, state
-- For the scripts that enqueue, with their arguments.
local policy, within = ARGV[1], nil
if string.sub(policy, 1, 5) == 'once:' then
  within = tonumber(string.sub(policy, 6)) -- for how many seconds what is done keeps its ID
  policy = 'once'
end

-- Says whether an ID is not to be enqueued since it is done.
local function isDone(score, field, done)
  return within and not score and (finite(done) or -math.huge) > now - within and not (decode(field) or {}).dead
end
