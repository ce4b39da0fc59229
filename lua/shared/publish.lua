-- DEFINES publish
-- USES rights
-- For the scripts that publish. A message is only a hint: if the server denies a command, waiters
-- still poll.
--
-- A channel whose name has a '*' behind it is on a Cluster. There a message of PUBLISH goes to
-- every server, one of SPUBLISH to those of the channel's slot. A client that cannot subscribe
-- to it that way subscribes classically on this server, so that both are seen here.

-- Publishes a message. Returns how many clients were notified, 0 if the server denies it.
local function publish(channel, message)
  local sharded = 0
  if string.byte(channel, -1) == 42 then
    channel = string.sub(channel, 1, -2)
    -- A denial that is asked for beforehand is not logged each time. A server that refuses the question is tried.
    local asked, allowed = pcall(may, 'SPUBLISH', channel)
    local sent = (not asked or allowed) and redis.pcall('SPUBLISH', channel, message)
    if type(sent) == 'number' then
      if redis.pcall('PUBSUB', 'NUMSUB', channel)[2] == 0 then return sent end
      sharded = sent
    end
  end
  local classic = redis.pcall('PUBLISH', channel, message)
  return type(classic) == 'number' and sharded + classic or sharded
end
