-- Releases a permit that the token holds, and reserves it for the next in line. Takes a member out of the line, as release.lua does.
-- KEYS[1] the permits   KEYS[2] their line
-- ARGV[1] token   ARGV[2] member that leaves the line, or ''
-- RETURNS 0 the token does not hold one
--         n > 0 released, and n - 1 processes were woken
-- USES kinds, fence, lock_line, permits
-- RETRY idempotent: as of release.lua.
local now, number, member = clock(), redis.pcall('ZSCORE', KEYS[1], ''), ARGV[2] or ''

local released = type(number) ~= 'table' and removePermit(now, ARGV[1])
local first = leave(member)
if released then return passPermitOn(now, number) + 1 end
if member == '' or type(number) == 'table' then return denied(number) or 0 end
local held = redis.call('ZCOUNT', KEYS[1], '(' .. text(now), '+inf')
if removePermit(now, '>' .. member) or held < -tonumber(number or -1) then
  passPermitOn(now, number)
elseif first then
  tellFirst(firstEnd(now) - now)
end
return 0
