//go:build long

package failover

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

// failovers is how many failovers each of these tests goes through.
func failovers() int { return 3 * systest.Scale() }

// TestFailover_Sentinel has primaries fail under load, one after the other. What may be
// lost with them is counted; what may not is required. For 99 failovers:
//
//	SLUICE_TEST_SCALE=33 go test -tags long -run 'TestFailover_(Sentinel|Cluster)$' -v -timeout 1h ./internal/systest/failover
func TestFailover_Sentinel(t *testing.T) {
	// Not parallel: it measures.
	runFailovers(t, behindSentinel(t), failovers(), killed, hung, asked)
}

// TestFailover_Cluster is TestFailover_Sentinel on a Cluster.
func TestFailover_Cluster(t *testing.T) {
	// Not parallel: it measures.
	f, _ := onCluster(t)
	runFailovers(t, f, failovers(), killed, hung, asked)
}

// TestFailover_OrderlyAgainAndAgain is TestFailover_OrderlyLosesNothing with more
// failovers.
func TestFailover_OrderlyAgainAndAgain(t *testing.T) {
	t.Parallel()
	orderly(t, failovers())
}
