package redistest

import _ "unsafe" // for linkname

// What each script of a miniredis allocates for its Lua: 16 KB instead of 80 KB, in which the race detector spent a third of
// the processor's time of all tests. A script that needs more fails.
//
//go:linkname luaRegistrySize github.com/yuin/gopher-lua.RegistrySize
var luaRegistrySize int

func init() { luaRegistrySize = 1024 }
