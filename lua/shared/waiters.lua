-- Prelude of the scripts that count who waits for tasks.

-- Returns how many clients have a caller that waits for tasks, as far as this server knows: those
-- subscribed to the idle channel, whose name is like the wake channel's. 0 if that is denied.
local function waiters(channel)
  if string.byte(channel, -1) ~= 42 then return redis.pcall('PUBSUB', 'NUMSUB', string.sub(channel, 1, -5) .. 'idle')[2] or 0 end
  channel = string.sub(channel, 1, -6) .. 'idle' -- on a Cluster, see publish.lua
  return (redis.pcall('PUBSUB', 'SHARDNUMSUB', channel)[2] or 0) + (redis.pcall('PUBSUB', 'NUMSUB', channel)[2] or 0)
end
