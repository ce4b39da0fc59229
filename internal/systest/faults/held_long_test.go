//go:build long

package faults

import (
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/systest"
)

// TestLocker_HoldsTenThousandLocks is TestLocker_HoldsManyLocks with ten thousand, for a
// minute of their default TTL.
func TestLocker_HoldsTenThousandLocks(t *testing.T) {
	// Not parallel: it counts goroutines.
	hold(t, 10_000*systest.Scale(), 15*time.Second, time.Minute)
}
