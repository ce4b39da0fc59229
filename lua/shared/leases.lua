-- DEFINES unlease
-- USES unpack, prelude, tally
-- For the scripts that end leases, or begin them anew. KEYS[5] is as in fields.lua.

-- Takes tasks off the leased ones, and counts the leases that have run out. Those leave KEYS[5] here and by a claim alone, so that each is counted
-- once, and stats.lua, which adds those that are still there, never shows a smaller number. A script that is not given the counts leaves them there.
local function unlease(ids)
  local ended, lost = {}, 0
  for from = 1, #ids, 250 do
    local last = math.min(from + 249, #ids)
    local ends = redis.pcall('ZMSCORE', KEYS[5], unpack(ids, from, last)) -- where the server denies that, none is counted
    for i = from, last do
      local leaseEnd = ends[i - from + 1]
      local ranOut = leaseEnd and tonumber(leaseEnd) <= now
      if ranOut then lost = lost + 1 end
      if ends.err or leaseEnd and (KEYS[9] or not ranOut) then ended[#ended + 1] = ids[i] end
    end
  end
  for from = 1, #ended, 250 do redis.call('ZREM', KEYS[5], unpack(ended, from, math.min(from + 249, #ended))) end
  if KEYS[9] then tally('lost', lost) end
end
