package systest

import (
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// AwaitSteps waits until every caller has gone on whose steps are counted with mu, and returns for
// how long.
func AwaitSteps(t testing.TB, mu *sync.Mutex, steps map[string]int, patience time.Duration) time.Duration {
	t.Helper()
	begun := time.Now()
	mu.Lock()
	before := maps.Clone(steps)
	mu.Unlock()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var stuck []string
		mu.Lock()
		defer mu.Unlock()
		for who, n := range before {
			if steps[who] == n {
				stuck = append(stuck, who)
			}
		}
		assert.Empty(c, stuck, "stuck")
	}, patience, 5*time.Millisecond)
	return time.Since(begun)
}
