-- Returns how much longer a lock will be held and, if asked about any holder, what its token
-- says of the owner, or how many permits of the name are held, and by which owners. The rest of a token stays on the server.
-- KEYS[1] the lock or, if asked about any holder, permits   KEYS[2] its line, if asked about any holder
-- ARGV[1] token, or '' for any holder
-- RETURNS n >= 0 ms left   -1 held without TTL   -2 not held (by that token)
--         for any holder: {one of these, of permits for the last that ends; the labels of those that hold it and have one, those of permits in the
--         order in which they end; how many hold it; how many processes wait}
-- USES kinds, fence
-- RETRY readOnly: changes nothing.
local left, holder = redis.call('PTTL', KEYS[1]), redis.pcall('GET', KEYS[1])
if ARGV[1] ~= '' then return denied(holder) or holder == ARGV[1] and left or -2 end
local waiting
if KEYS[2] then waiting = redis.pcall('ZCARD', KEYS[2]) end
if type(waiting) ~= 'number' then waiting = 0 end -- it is denied, or another program's key

-- Returns the tokens that hold the lock, or a permit, and the labels of those that have one: label:random, as newToken makes them. Another
-- library's, of another form, has none. A process for which it is reserved counts with those that wait.
local function split(tokens)
  local held, labels = {}, {}
  for _, token in ipairs(tokens) do
    if isReservation(token) then
      waiting = waiting + 1
    else
      held[#held + 1] = token
      labels[#labels + 1] = #token <= 91 and string.match(token, '^(.+):' .. string.rep('[A-Z2-7]', 26) .. '$') or nil
    end
  end
  return held, labels
end

if not holder then return { -2, {}, 0, waiting } end
if type(holder) == 'string' then
  local held, labels = split({ holder })
  return { held[1] and left or -2, labels, #held, waiting }
end
local known = permitsInstead(holder)
if type(known) == 'table' then return denied(known) or { -2, {}, 0, waiting } end -- another library's sorted set
local now = clock()
local held, labels = split(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(now), '+inf'))
if not held[1] then return { -2, {}, 0, waiting } end
-- A foreign program may have written 'inf'.
local ends = math.min(tonumber(redis.call('ZSCORE', KEYS[1], held[#held])) or 9e15, 9e15)
return { ends - now, labels, #held, waiting }
