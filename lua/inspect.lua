-- Returns how much longer a lock will be held and, if asked about any holder, what its token
-- says of the owner, or how many permits of the name are held. The rest of a token stays on the server.
-- KEYS[1] the lock or, if asked about any holder, permits   KEYS[2] its line, if asked about any holder
-- ARGV[1] token, or '' for any holder
-- RETURNS n >= 0 ms left   -1 held without TTL   -2 not held (by that token)
--         for any holder: {one of these, of permits for the last that ends; the label, or '' if there is none; how many hold it;
--         how many processes wait in line}
-- RETRY readOnly: changes nothing.
local left, holder = redis.call('PTTL', KEYS[1]), redis.pcall('GET', KEYS[1])
if ARGV[1] ~= '' then return denied(holder) or holder == ARGV[1] and left or -2 end
local waiting
if KEYS[2] then waiting = redis.pcall('ZCARD', KEYS[2]) end
if type(waiting) ~= 'number' then waiting = 0 end -- it is denied, or another program's key
local free = { -2, '', 0, waiting }
if not holder then return free end
if type(holder) == 'table' then
  local known = permitsInstead(holder)
  if type(known) == 'table' then return denied(known) or free end -- another library's sorted set
  local now = clock()
  local held, last = redis.call('ZCOUNT', KEYS[1], '(' .. text(now), '+inf'), redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
  local ends = tonumber(last[2] or 0)
  if ends <= now then return free end
  return { ends - now, '', held, waiting }
end
-- label:random, as newToken makes it: a token of another form, which is another library's, has no label.
local label = #holder <= 91 and string.match(holder, '^(.+):' .. string.rep('[A-Z2-7]', 26) .. '$')
return { left, label or '', 1, waiting }
