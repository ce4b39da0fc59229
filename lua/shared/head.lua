-- Prelude of the scripts that look at heads, behind pause.lua.

-- Returns what next.lua and heads.lua say of a head with this ID and score: in how many microseconds it is due, and what tells it from others.
local function offAndHead(id, score, pauseLeft)
  local off, due = -1, finite(score)
  if due and due - now <= 3600 then
    off = math.max(math.ceil((due - now) * 1000000), 0)
  elseif not due and score and string.sub(score, 1, 1) == '-' then
    off = 0
  end
  local pause = off >= 0 and pauseEnds(pauseLeft())
  if pause then off = pause > 3600000000 and -1 or math.max(off, pause) end
  -- The head only has to be told from others: the rest of a foreign ID that is longer is not needed.
  return off, off >= 0 and score .. ' ' .. string.sub(id, 1, 512) or ''
end
