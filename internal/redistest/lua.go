package redistest

import _ "unsafe" // for linkname

// What each script of a miniredis allocates for its Lua: 16 KB and 5 KB, instead of 80 KB and 20
// KB. A third of the time of a test that runs many went into that, with the race detector. A script
// that needs more fails.
var (
	//go:linkname luaRegistrySize github.com/yuin/gopher-lua.RegistrySize
	luaRegistrySize int
	//go:linkname luaCallStackSize github.com/yuin/gopher-lua.CallStackSize
	luaCallStackSize int
)

func init() { luaRegistrySize, luaCallStackSize = 1024, 64 }
