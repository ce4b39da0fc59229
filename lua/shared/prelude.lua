-- What the queue's scripts begin with.
--   KEYS[1] the queue: zset, id -> score in Unix seconds
--   KEYS[2] its tasks: hash, id -> field
local queue, tasks = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000

-- There is no rollback. So a script asks, before its first write, whether it may use
-- the other commands that it writes with, and ends here if it may not. Redis 6 cannot
-- be asked.
local function need(command, key)
  if redis.acl_check_cmd and not redis.acl_check_cmd(command, key) then
    error({ err = 'NOPERM this user may not run ' .. command .. ', which the script needs' })
  end
end

-- Seventeen digits: what a double needs. Redis's own conversion loses some.
local function text(x)
  return string.format('%.17g', x)
end

-- A finite number, or nil.
local function finite(s)
  local x = s and tonumber(s)
  if x and x > -1e300 and x < 1e300 then return x end
end
