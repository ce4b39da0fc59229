-- DEFINES holder
-- For release: the most common and cheapest case, before the other fragments. The token holds the lock, no fences were reserved, and no
-- process waits. What fails on the line is left to lock_line.lua, which does likewise.
local holder = redis.pcall('GET', KEYS[1])
if holder == ARGV[1] and (ARGV[2] or '') == '' and not KEYS[3] and not (KEYS[2] and redis.pcall('ZRANGE', KEYS[2], '0', '0')[1]) then
  redis.call('DEL', KEYS[1])
  return 1
end
