-- Drops dead letters that are too many or too old, the oldest first, up to fifty, and forgets what was finished too long ago.
-- KEYS[3] the dead letters   KEYS[10] and KEYS[11] see done.lua
-- ARGV[1] how many may stay, 0 for any number   ARGV[2] for how many seconds each may, 0 for ever   ARGV[3] for how many seconds
--         what is finished is remembered, '' for what others say
-- RETURNS { 1 if more are to be dropped or forgotten, else 0; then how many were dropped, and up to ten of their IDs, if any were }
-- RETRY never: the next run drops what this one has left, and no caller waits for it.
local dropped, more = trim(0, 1)
if ARGV[3] ~= '' then more = forgetDone(tonumber(ARGV[3])) or more end
return { more and 1 or 0, unpack(dropped) }
