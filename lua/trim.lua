-- Drops dead letters that are too many or too old, the oldest first, up to fifty.
-- KEYS[3] the dead letters
-- ARGV[1] how many may stay, 0 for any number   ARGV[2] for how many seconds each may, 0 for ever
-- RETURNS { 1 if more are to be dropped, else 0; then how many were dropped, and up to ten of their IDs, if any were }
-- RETRY never: the next run drops what this one has left, and no caller waits for it.
local dropped, more = trim(0, 1)
return { more and 1 or 0, unpack(dropped) }
