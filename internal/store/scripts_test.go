package store

import (
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// luaFiles returns the scripts, and the fragments as shared/<name>, without the ending of their
// files.
func luaFiles(t *testing.T) map[string]string {
	files := map[string]string{}
	require.NoError(t, fs.WalkDir(os.DirFS("../../lua"), ".", func(path string, _ fs.DirEntry, err error) error {
		if name, isLua := strings.CutSuffix(path, ".lua"); isLua {
			source, err := os.ReadFile("../../lua/" + path)
			require.NoError(t, err)
			files[name] = string(source)
		}
		return err
	}))
	return files
}

// definitions are the names that a file gives to what stands at its top level.
func definitions(source string) (names []string) {
	for _, found := range regexp.MustCompile(`(?m)^local (?:function )?(\w+(?:, \w+)*)`).FindAllStringSubmatch(luaCode(source, true), -1) {
		names = append(names, strings.Split(found[1], ", ")...)
	}
	return names
}

// foreign are the names that a file uses and does not define.
func foreign(source string) (names []string) {
	for _, found := range notPortable(source) {
		if name, isGlobal := strings.CutPrefix(found, "the global "); isGlobal {
			names = append(names, name)
		}
	}
	return names
}

// definedNames are those of all lines DEFINES of a fragment.
func definedNames(source string) (names []string) {
	for line := range strings.Lines(source) {
		names = append(names, header(line, "DEFINES")...)
	}
	return names
}

// TestFragments_SayWhatTheyDefineAndUse: USES of a script or fragment names each fragment of which
// it uses a name, and no other; DEFINES of a fragment names all that others use, and nothing else.
// So no name of a loaded script is missing, and none stands for two things.
func TestFragments_SayWhatTheyDefineAndUse(t *testing.T) {
	files := luaFiles(t)
	used := map[string][]string{} // by fragment
	for file, source := range files {
		needed := map[string]bool{}
		for _, name := range foreign(source) {
			var from []string
			for _, fragment := range header(source, "USES") {
				if slices.Contains(definedNames(files["shared/"+fragment]), name) {
					from = append(from, fragment)
				}
			}
			require.Len(t, from, 1, "%s.lua uses %s: its USES has to name one fragment that DEFINES it", file, name)
			needed[from[0]] = true
			used[from[0]] = append(used[from[0]], name)
		}
		for _, fragment := range header(source, "USES") {
			require.True(t, needed[fragment], "%s.lua USES %s, and uses nothing of it", file, fragment)
		}
	}
	for file, source := range files {
		fragment, isShared := strings.CutPrefix(file, "shared/")
		require.Equal(t, isShared, strings.HasPrefix(source, "-- DEFINES "), file)
		if !isShared {
			continue
		}
		slices.Sort(used[fragment])
		require.ElementsMatch(t, slices.Compact(used[fragment]), definedNames(source), "%s.lua DEFINES what others use", file)
		require.Subset(t, definitions(source), definedNames(source), file)
	}
}

// TestFragments_AreInOrder: in a script each fragment stands once, behind all that it uses; and no
// other one of the script has a name at its top level that the fragment DEFINES.
func TestFragments_AreInOrder(t *testing.T) {
	files, scripts := luaFiles(t), Load(os.DirFS("../../lua"))
	defines, tops := map[string][]string{}, map[string][]string{}
	for file, source := range files {
		defines[file], tops[file] = definedNames(source), definitions(source)
	}
	for name, script := range scripts.All {
		parts := []string{}
		for file, source := range files {
			if strings.HasPrefix(file, "shared/") && strings.Contains(script.Source(), source) {
				parts = append(parts, file)
			}
		}
		place := func(file string) int { return strings.Index(script.Source(), files[file]) }
		for _, file := range append(parts, name) {
			require.Equal(t, 1, strings.Count(script.Source(), files[file]), "%s.lua has %s", name, file)
			for _, used := range header(files[file], "USES") {
				require.Contains(t, parts, "shared/"+used, "%s.lua", name)
				require.Less(t, place("shared/"+used), place(file), "%s.lua", name)
			}
			for _, other := range parts {
				for _, defined := range defines[other] {
					require.True(t, other == file || file == name || !slices.Contains(tops[file], defined),
						"%s.lua: %s and %s both name %s", name, other, file, defined)
				}
			}
		}
	}
}
