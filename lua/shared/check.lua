-- DEFINES denied
-- USES unpack

-- Returns which of some commands this user may not run on this server: the number of each in ARGV, from 1; negative
-- if the server does not know it. Redis 6 cannot say. ARGV has each with all of its arguments, since a server may check
-- how many there are, and before it how many words that is.
local function denied()
  local found, number, i = {}, 1, 1
  while redis.acl_check_cmd and ARGV[i] do
    local words = {}
    for at = 1, tonumber(ARGV[i]) do words[at] = ARGV[i + at] end
    local known, allowed = pcall(redis.acl_check_cmd, unpack(words))
    if not known then found[#found + 1] = -number elseif not allowed then found[#found + 1] = number end
    number, i = number + 1, i + #words + 1
  end
  return found
end
