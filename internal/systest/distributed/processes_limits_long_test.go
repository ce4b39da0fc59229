//go:build long

package distributed

import (
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/systest"
)

// TestLimits_OverProcessesAtLength is TestLimits_OverProcesses with eight rounds, which take a
// minute.
func TestLimits_OverProcessesAtLength(t *testing.T) {
	limitProcesses(t, 8*systest.Scale(), speed{ofRate: 0.95, median: 5 * time.Millisecond, p99: 5 * time.Millisecond, lease: 1100 * time.Millisecond})
}
