package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/sluicetest"
)

// TestRun_WritesEachRowOnce, by batches and one by one.
func TestRun_WritesEachRowOnce(t *testing.T) {
	var out strings.Builder
	dsn := "file:" + filepath.Join(t.TempDir(), "views.db") + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)"
	require.NoError(t, run(t.Context(), &out, sluicetest.New(t).Client(), "sqlite", dsn, 1100))
	require.Contains(t, out.String(), "up to 1 rows a statement: 1100 rows")
	require.Contains(t, out.String(), "up to 500 rows a statement: 1100 rows")
}
