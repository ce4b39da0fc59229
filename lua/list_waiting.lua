-- Lists tasks that wait in their groups, in the order of groups and due times, behind the last one of the page before. Stops early at a megabyte.
-- KEYS[14] see groups.lua
-- ARGV[1] n, at most 250   ARGV[2] where that last one stands, or ''   ARGV[3] the group, '' for all   ARGV[4] the most bytes of a payload, as in payload.lua
-- RETURNS { where the last one stands if there may be more, else ''; ''; then of each what list.lua says }
-- USES prelude, read, state, groups, payload
-- RETRY readOnly: changes nothing.
local group, reply, size, last = ARGV[3], { '', '' }, 0, ''
local from = ARGV[2] ~= '' and '(' .. ARGV[2] or group ~= '' and '[~' .. group .. '\0' or '[~'
local found = redis.call('ZRANGEBYLEX', KEYS[14], from, group ~= '' and '(~' .. group .. '\1' or '(\127', 'LIMIT', '0', ARGV[1])
for _, member in ipairs(found) do
  if size >= 1048576 then break end
  local id = string.sub(member, string.find(member, '\0', 1, true) + 17)
  local field = redis.call('HGET', KEYS[4], id)
  local at = waitsUntil(field)
  last = member
  if at then
    local payload, read = payloadUpTo(ARGV[4], id)
    append(reply, id, text(at), '0' .. holdsOf(field), payload, '', '', '', '')
    size = size + read + #id + #field
  end
end
if last ~= '' and (#found == tonumber(ARGV[1]) or last ~= found[#found]) then reply[1] = last end
return reply
