-- Releases a permit that the token holds, and wakes the next in line. Takes a member out of the line, as release.lua does.
-- KEYS[1] the permits   KEYS[2] their line
-- ARGV[1] token   ARGV[2] member that leaves the line, or ''
-- RETURNS 0 the token does not hold one
--         n > 0 released, and n - 1 processes were woken
-- RETRY idempotent: a token is used for one acquisition only, so a second run releases nothing. It may wake one more process.
local now, ends, member = clock(), redis.pcall('ZSCORE', KEYS[1], ARGV[1]), ARGV[2] or ''
if type(ends) == 'string' then
  local last = redis.call('ZRANGE', KEYS[1], '-2', '-1', 'WITHSCORES')
  local others = tonumber(last[3] == ARGV[1] and last[2] or last[4] or 0) -- when the last of the others ends
  if others <= now then -- only '' is left, or what has ended
    redis.call('DEL', KEYS[1])
  else
    redis.call('ZREM', KEYS[1], ARGV[1])
    if others < tonumber(ends) then redis.pcall('PEXPIRE', KEYS[1], text(others - now)) end
  end
end
local first = leave(member)
if type(ends) == 'string' and tonumber(ends) > now then return wake() + 1 end
if member == '' then return denied(ends) or 0 end
local number = redis.pcall('ZSCORE', KEYS[1], '')
local held = redis.pcall('ZCOUNT', KEYS[1], '(' .. text(now), '+inf')
if type(number) == 'table' or type(held) == 'table' then return denied(number) or denied(held) or 0 end
if held < -tonumber(number or -1) then wake() elseif first then tellFirst(firstEnd(now) - now) end
return denied(ends) or 0
