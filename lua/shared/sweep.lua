-- DEFINES sweep
-- USES rights, failure, stock, groups, leases
-- For presence.lua.

-- Ends what tasks hold that are no more: a foreign consumer has removed them, or who ended them did not know that they hold any. Each call looks
-- at a thousand fields or so, behind those of the one before.
local function sweep()
  local stocks = redis.pcall('HLEN', KEYS[12])
  if type(stocks) ~= 'number' or stocks == 0 or not may('HINCRBY', KEYS[12]) then return end -- it may be denied
  local found = redis.call('HSCAN', KEYS[4], redis.call('HGET', KEYS[12], 'sweep') or '0', 'COUNT', '1000')
  for i = 1, #found[2], 2 do
    local id, field = found[2][i], found[2][i + 1]
    if string.byte(field, 1) == 42 and not redis.call('ZSCORE', KEYS[1], id) and not redis.call('ZSCORE', KEYS[3], id) and not waitsUntil(field) then
      redis.call('HDEL', KEYS[4], id)
      settleGone(id, field)
      unlease({ id })
      forgetErrors({ id })
    end
  end
  if found[1] == '0' then redis.call('HDEL', KEYS[12], 'sweep') else redis.call('HSET', KEYS[12], 'sweep', found[1]) end
end
