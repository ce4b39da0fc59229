-- Removes dead letters for good. A task that is in the queue again is left alone: its ID only leaves the
-- list of dead letters, as in revive.lua.
-- KEYS[3] the dead letters   KEYS[12] see stock.lua
-- ARGV the ids
-- RETURNS the number of letters removed
-- USES letters
-- RETRY never: a task may have died again between two runs.
checkLetters()
return dropLetters(ARGV)
