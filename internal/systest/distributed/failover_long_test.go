//go:build long

package distributed

import (
	"strconv"
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

// failovers is how many failovers each of these tests goes through.
func failovers() int { return 3 * systest.Scale() }

// TestFailover_Sentinel has primaries fail under load, one after the other. What may be
// lost with them is counted; what may not is required. For 99 failovers:
//
//	SLUICE_TEST_SCALE=33 go test -tags long -run 'TestFailover_(Sentinel|Cluster)$' -v -timeout 1h ./internal/systest/distributed
func TestFailover_Sentinel(t *testing.T) {
	// Not parallel: it measures.
	runFailovers(t, behindSentinel(t), 0, failovers(), killed, hung, asked)
}

// TestFailover_Cluster is TestFailover_Sentinel on a Cluster.
func TestFailover_Cluster(t *testing.T) {
	// Not parallel: it measures.
	f, _ := onCluster(t)
	runFailovers(t, f, 0, failovers(), killed, hung, asked)
}

// TestFailover_SentinelAcknowledged is TestFailover_Sentinel, where what is counted has waited for
// one of two replicas, or for both. With both nothing may be lost where the primary was killed: any
// of them may be promoted.
//
//	SLUICE_TEST_SCALE=33 go test -tags long -run 'TestFailover_.*Acknowledged' -v -timeout 2h ./internal/systest/distributed
func TestFailover_SentinelAcknowledged(t *testing.T) {
	// Not parallel: it measures.
	for replicas := 1; replicas <= 2; replicas++ {
		t.Run(strconv.Itoa(replicas), func(t *testing.T) {
			l := runFailovers(t, behindSentinel(t), replicas, failovers(), killed, hung, asked)
			if replicas == 2 {
				l.requireNothingLost(killed)
			}
		})
	}
}

// TestFailover_ClusterAcknowledged is TestFailover_SentinelAcknowledged on a Cluster.
func TestFailover_ClusterAcknowledged(t *testing.T) {
	// Not parallel: it measures.
	f, _ := onCluster(t)
	runFailovers(t, f, 1, failovers(), killed, hung, asked).requireNothingLost(killed)
}

// TestFailover_OrderlyAgainAndAgain is TestFailover_OrderlyLosesNothing with more
// failovers.
func TestFailover_OrderlyAgainAndAgain(t *testing.T) {
	t.Parallel()
	orderly(t, failovers())
}

// TestFailover_TheLineGoesOnAgainAndAgain is TestFailover_TheLineGoesOn with twenty failovers of
// each kind of group.
func TestFailover_TheLineGoesOnAgainAndAgain(t *testing.T) {
	// Not parallel: it measures.
	for kind, start := range map[string]func(t *testing.T) failing{
		"sentinel": behindSentinel,
		"cluster":  func(t *testing.T) failing { f, _ := onCluster(t); return f },
	} {
		t.Run(kind, func(t *testing.T) { lineGoesOn(t, start(t), 20*systest.Scale(), killed, hung, asked) })
	}
}
