package model_test

import (
	"flag"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

// TestMain sets the number of cases of each machine to 1,000, unless a flag or rapid's
// environment variable sets it.
func TestMain(m *testing.M) {
	if os.Getenv("RAPID_CHECKS") == "" {
		checks := flag.Lookup("rapid.checks")
		checks.DefValue = "1000"
		_ = checks.Value.Set(checks.DefValue)
	}
	redistest.Main(m)
}

// tally counts operations by their results.
type tally struct {
	mu     sync.Mutex // guards counts
	counts map[string]int
}

func (c *tally) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[what]++
}

// report prints the counts. It fails the test if a run that was long enough has not seen
// every wanted result.
func (c *tally) report(t *testing.T, wanted []string) {
	t.Helper()
	total := 0
	for _, what := range slices.Sorted(maps.Keys(c.counts)) {
		t.Logf("%8d  %s", c.counts[what], what)
		total += c.counts[what]
	}
	t.Logf("%8d  operations", total)
	if total < 100_000 || t.Failed() {
		return
	}
	for _, what := range wanted {
		require.NotZero(t, c.counts[what], "%s: never seen", what)
	}
}

// either returns a if yes, else b.
func either(yes bool, a, b string) string {
	if yes {
		return a
	}
	return b
}
