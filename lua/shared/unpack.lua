-- DEFINES unpack
local unpack = table.unpack or unpack -- as Lua 5.4 calls it, and 5.1
