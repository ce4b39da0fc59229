package sluice_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHouse_GuaranteesNameTests: each test that docs/guarantees.md names exists, in some
// package of the repository.
func TestHouse_GuaranteesNameTests(t *testing.T) {
	t.Parallel()
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w*)\(`)
	tests := map[string]bool{}
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, test := range declared.FindAllStringSubmatch(string(text), -1) {
			tests[test[1]] = true
		}
		return err
	}))
	doc, err := os.ReadFile("docs/guarantees.md")
	require.NoError(t, err)
	names := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(string(doc), -1)
	require.Greater(t, len(names), 30)
	for _, name := range names {
		if !tests[name[1]] {
			t.Errorf("docs/guarantees.md names %s, which does not exist", name[1])
		}
	}
}
