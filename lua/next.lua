-- Returns how long it is until the earliest task is due, and which task that is.
-- RETURNS { microseconds, 0 if it is due, -1 if there is none within an hour; its score and ID if it is due, else '' }
-- RETRY readOnly: changes nothing.
local id, score = unpack(redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES'))
local due, off = finite(score), -1
if due and due - now <= 3600 then
  off = math.max(math.ceil((due - now) * 1000000), 0)
elseif not due and score and string.sub(score, 1, 1) == '-' then
  off = 0
end
-- The head only has to be told from others: the rest of a foreign ID that is longer is not needed.
return { off, off == 0 and score .. ' ' .. string.sub(id, 1, 512) or '' }
