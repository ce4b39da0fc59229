package sluice

import (
	"embed"
	"io/fs"

	"github.com/sluice-go/sluice/internal/store"
)

//go:embed lua
var lua embed.FS

// scripts are those of lua, with which the library does all that it does in Redis.
var scripts = loadScripts()

func loadScripts() *store.Scripts {
	files, err := fs.Sub(lua, "lua")
	if err != nil {
		panic(err)
	}
	return store.Load(files)
}
