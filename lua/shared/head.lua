-- DEFINES offAndHead
-- USES prelude
-- For the scripts that look at heads.

-- Returns what next.lua and heads.lua say of a head with this ID and score: in how many microseconds it is due, and what tells it from others.
-- hold returns in how many a pause and limits let it go, or -2 if that is not known.
local function offAndHead(id, score, hold)
  local off, due = -1, finite(score)
  if due and due - now <= 3600 then
    off = math.max(math.ceil((due - now) * 1000000), 0)
  elseif not due and score and string.sub(score, 1, 1) == '-' then
    off = 0
  end
  local wait = off >= 0 and hold() or 0
  if wait > 3600000000 then off = -1 elseif wait < 0 then off = wait elseif wait > 0 then off = math.max(off, wait) end
  -- The head only has to be told from others: the rest of a foreign ID that is longer is not needed.
  return off, off >= 0 and score .. ' ' .. string.sub(id, 1, 512) or ''
end
