-- DEFINES keepError, forgetErrors
-- USES unpack, prelude
-- For the scripts that write or remove the last error of a task.
--   KEYS[7] of each task that is to be tried again since its handler has failed: hash, id -> '<Unix seconds> <error>'.
--   It is removed where the task ends or its attempts begin anew. Only a task that was claimed before has one.
-- Where one of these fails, nothing else does.

local function keepError(id, reason) redis.pcall('HSET', KEYS[7], id, text(now) .. ' ' .. reason) end

local function forgetErrors(ids)
  for from = 1, #ids, 250 do redis.pcall('HDEL', KEYS[7], unpack(ids, from, math.min(from + 249, #ids))) end
end
