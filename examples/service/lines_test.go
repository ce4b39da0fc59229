package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLines prints the table of examples/README.md, and fails if it is another: go test -C examples
// -run TestLines -v ./service.
func TestLines(t *testing.T) {
	t.Parallel()
	ours, names := codeLines(t, "main.go")
	theirs, theirNames := codeLines(t, "asynq/main.go")
	for i, name := range theirNames {
		if !slices.Contains(names, name) {
			names = slices.Insert(names, min(i, len(names)), name)
		}
	}
	var table strings.Builder
	table.WriteString("| lines of code | Sluice | asynq and redislock |\n|---|--:|--:|\n")
	var ourSum, theirSum int
	for _, name := range names {
		fmt.Fprintf(&table, "| %s | %d | %d |\n", name, ours[name], theirs[name])
		ourSum, theirSum = ourSum+ours[name], theirSum+theirs[name]
	}
	fmt.Fprintf(&table, "| in all | %d | %d |\n", ourSum, theirSum)
	t.Logf("\n%s", table.String())
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), table.String())
}

// codeLines counts, for each feature, the lines that are neither empty nor a comment. A line "//
// feature: name" begins one.
func codeLines(t *testing.T, file string) (lines map[string]int, names []string) {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	name := "imports and types"
	lines, names = map[string]int{}, []string{name}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if feature, ok := strings.CutPrefix(line, "// feature: "); ok {
			name = feature
			names = append(names, name)
		} else if line != "" && !strings.HasPrefix(line, "//") {
			lines[name]++
		}
	}
	return lines, names
}
