-- Returns one task, in whatever state it is, and the time.
-- KEYS[3] the dead letters   KEYS[7] the last errors   KEYS[10] and KEYS[11] see done.lua
-- ARGV[1] id   ARGV[2] the most bytes of payload, as in payload.lua
-- RETURNS { now, score, attempt, payload, state as in cancel.lua, and what story says }
--         { now } no such task   { now, '' } a score or state field not written by this library
-- RETRY readOnly: changes nothing.
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
local dead = not score and redis.call('ZSCORE', KEYS[3], ARGV[1])
if not score and not dead then
  local done = finite(redis.call('ZSCORE', KEYS[10], ARGV[1]))
  if not done then return { text(now) } end
  local attempt, result = doneOf(ARGV[2], ARGV[1])
  return { text(now), text(done), attempt, result, 5, '', '', '', '' }
end
local task = (dead and decode or live)(redis.call('HGET', KEYS[4], ARGV[1]))
score = finite(score or dead)
if not task or not score then return { text(now), '' } end
local state = dead and 4 or stateOf(task, score)
if not dead then task, score = resolve(task, score) end
local payload = payloadUpTo(ARGV[2], ARGV[1])
return { text(now), text(score), string.format('%.0f', task.attempt), payload, state, story(ARGV[1], task, state) }
