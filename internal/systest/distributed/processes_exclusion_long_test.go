//go:build long

package distributed

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

// TestExclusion_BetweenProcessesAtLength is TestExclusion_BetweenProcesses with 40,000
// locks. For a million:
//
//	SLUICE_TEST_SCALE=25 go test -tags long -run TestExclusion_BetweenProcessesAtLength -v -timeout 1h ./internal/systest/distributed
func TestExclusion_BetweenProcessesAtLength(t *testing.T) {
	exclude(t, 40_000*systest.Scale(), 20)
}
