-- Returns how long it is until a queue's earliest task is due, and which task that is, and gives the client a place in line.
-- KEYS[6] the queue's line   KEYS[8] its pause and limits
-- ARGV[1] the client, '' for none; '>' and the client if it is to leave the line: then others see to the head   ARGV[2] its watch in ms
-- RETURNS { microseconds, 0 if it is due, -1 if there is none within an hour; its score and ID, or '', how many clients are in line; the
--         client's place, as join says, -1 if it did not want one }
-- USES queue_idle, queue_place, limits, head
-- RETRY idempotent: a second run finds the client in line.
local head = redis.call('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES')
local off, id = offAndHead(head[1], head[2], function()
  local isKnown, wait = pcall(function() -- an error is none: then what hands tasks out fails
    readLimits()
    if not limits then return 0 end
    limits.allowed(0)
    return (limits.heldBack())
  end)
  return isKnown and wait or 0
end)
local far, place = off < 0 and 3600000001 or off, -1
if string.byte(ARGV[1]) == 62 then
  leave(string.sub(ARGV[1], 2), 0)
  seeTo(far, 1)
elseif ARGV[1] ~= '' then
  place = join(ARGV[1], far, tonumber(ARGV[2]))
end
return { off, id, idle(), place }
