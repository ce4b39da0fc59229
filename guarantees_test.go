package sluice_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGuaranteesNameTests: what docs/guarantees.md says would fail is there to fail.
func TestGuaranteesNameTests(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	var tests strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		tests.Write(text)
	}
	doc, err := os.ReadFile("docs/guarantees.md")
	require.NoError(t, err)
	names := regexp.MustCompile("`(Test[A-Za-z]+)`").FindAllStringSubmatch(string(doc), -1)
	require.Greater(t, len(names), 30)
	for _, name := range names {
		require.Contains(t, tests.String(), "func "+name[1]+"(")
	}
}
