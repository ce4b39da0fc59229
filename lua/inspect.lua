-- Returns how much longer a lock will be held and, if asked about any holder, what its token
-- says of the owner, or how many permits of the name are held, and by which owners. The rest of a token stays on the server.
-- KEYS[1] the lock or, if asked about any holder, permits   KEYS[2] its line, if asked about any holder
-- ARGV[1] token, or '' for any holder
-- RETURNS n >= 0 ms left   -1 held without TTL   -2 not held (by that token)
--         for any holder: {one of these, of permits for the last that ends; the labels of those that hold it and have one, those of permits in the
--         order in which they end; how many hold it; how many processes wait; the labels of the first 16 of these that have one}
-- USES kinds, fence
-- RETRY readOnly: changes nothing.
local left, holder = redis.call('PTTL', KEYS[1]), redis.pcall('GET', KEYS[1])
if ARGV[1] ~= '' then return denied(holder) or holder == ARGV[1] and left or -2 end
local waiting, line = 0, {}
if KEYS[2] then waiting, line = redis.pcall('ZCARD', KEYS[2]), redis.pcall('ZRANGE', KEYS[2], '0', '15') end
if type(waiting) ~= 'number' then waiting = 0 end -- it is denied, or another program's key

-- Returns the answer, by how long the last of these tokens holds the lock, or a permit. A token is label:random, or only random, as
-- newToken makes them. Another library's, of another form, has no label. A process for which it is reserved counts with those that wait.
local function answer(tokens, leftOf)
  local held, labels, waiters = {}, {}, {}
  for _, token in ipairs(tokens) do
    if isReservation(token) then
      waiting = waiting + 1
      table.insert(line, 1, string.sub(token, 2))
    else
      held[#held + 1] = token
      labels[#labels + 1] = #token <= 91 and string.match(token, '^(.+):' .. string.rep('[A-Z2-7]', 26) .. '$') or nil
    end
  end
  for _, member in ipairs(line) do waiters[#waiters + 1] = string.match(member, '^%*?[^:]*:(.+):%d+:%d+$') end
  return { held[1] and leftOf(held[#held]) or -2, labels, #held, waiting, waiters }
end

if not holder then return answer({}) end
if type(holder) == 'string' then return answer({ holder }, function() return left end) end
local known = permitsInstead(holder)
if type(known) == 'table' then return denied(known) or answer({}) end -- another library's sorted set
local now = clock()
return answer(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. text(now), '+inf'), function(last)
  return math.min(tonumber(redis.call('ZSCORE', KEYS[1], last)) or 9e15, 9e15) - now -- a foreign program may have written 'inf'
end)
