-- Returns how much longer a lock will be held and, if asked about any holder, what its token
-- says of the owner. The rest of a token stays on the server.
-- KEYS[1] the lock
-- ARGV[1] token, or '' for any holder
-- RETURNS n >= 0 ms left   -1 held without TTL   -2 not held (by that token)
--         for any holder: {one of the first two, the label, or '' if the token has none}
-- RETRY readOnly: changes nothing.
local holder = redis.call('GET', KEYS[1])
if not holder or (ARGV[1] ~= '' and ARGV[1] ~= holder) then
  return -2
end
local left = redis.call('PTTL', KEYS[1])
if ARGV[1] ~= '' then
  return left
end
-- label:random, as newToken makes it: a token of another form, which is another library's, has no label.
local label = #holder - 27
if label < 1 or label > 64 or not string.find(string.sub(holder, label + 1), '^:[A-Z2-7]+$') then
  return { left, '' }
end
return { left, string.sub(holder, 1, label) }
