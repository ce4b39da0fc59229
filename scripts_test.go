package sluice

import (
	"crypto/sha1"
	"encoding/hex"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite lua/digests.txt")

// TestDigests keeps lua/digests.txt true. After a change to a script:
//
//	go test -run TestDigests . -update
func TestDigests(t *testing.T) {
	var want strings.Builder
	for _, name := range slices.Sorted(maps.Keys(scripts)) {
		sum := sha1.Sum([]byte(scripts[name].Source()))
		fmt.Fprintf(&want, "%s  %s\n", hex.EncodeToString(sum[:]), name)
	}
	if *update {
		require.NoError(t, os.WriteFile("lua/digests.txt", []byte(want.String()), 0o644))
		return
	}
	require.Equal(t, want.String(), luaFile("digests.txt"), "scripts have changed: go test -run TestDigests . -update")
}

// TestScriptsAreUsed keeps files without a script, and scripts longer than a
// screen, out of lua/.
func TestScriptsAreUsed(t *testing.T) {
	files, err := lua.ReadDir("lua")
	require.NoError(t, err)
	for _, file := range files {
		name, isScript := strings.CutSuffix(file.Name(), ".lua")
		if !isScript {
			continue
		}
		require.Contains(t, scripts, name, "no operation uses %s", file.Name())
		source := luaFile(file.Name())
		require.LessOrEqual(t, strings.Count(source, "\n"), 50, file.Name())
		require.Contains(t, source, "-- RETURNS", file.Name())
		require.Contains(t, source, "-- RETRY "+retries[scripts[name].Retry()], "%s and newScript differ", file.Name())
	}
}

// TestScripts_PayloadsStandApart: only what enqueues writes a payload, and only what hands a
// task out reads one.
func TestScripts_PayloadsStandApart(t *testing.T) {
	allowed := map[string][]string{
		`'HSET', tasks|'HSET', KEYS\[2\]`:                {"enqueue.lua", "shared/batch.lua", "shared/new.lua", "shared/put.lua"},
		`'H[A-Z]*GET[A-Z]*', (tasks|KEYS)|reader\(tasks`: {"dead.lua", "get.lua", "shared/read.lua"},
	}
	for use, want := range allowed {
		var users []string
		require.NoError(t, fs.WalkDir(lua, "lua", func(path string, _ fs.DirEntry, err error) error {
			name := strings.TrimPrefix(path, "lua/")
			if strings.HasSuffix(name, ".lua") && regexp.MustCompile(use).MatchString(luaFile(name)) {
				users = append(users, name)
			}
			return err
		}))
		require.Equal(t, want, users, use)
	}
}

// retries are the retry policies as the scripts' headers name them.
var retries = map[redisexec.RetryPolicy]string{
	redisexec.Never: "never", redisexec.Idempotent: "idempotent", redisexec.ReadOnly: "readOnly",
}
