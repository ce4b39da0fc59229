//go:build long

package faults

import (
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/systest"
)

// TestLock_ManyStallsNeverOutliveTheKey is TestLock_StallsNeverOutliveTheKey with 200
// locks.
func TestLock_ManyStallsNeverOutliveTheKey(t *testing.T) {
	// Not parallel: it measures.
	lag, s := systest.Lag(t), &stalls{together: 20, ttl: 300 * time.Millisecond}
	for round := range 10 * systest.Scale() {
		s.run(t, round)
	}
	s.check(t, lag)
}
