//go:build long

package distributed

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

// TestPartition_OfEachKindAgainAndAgain has ten partitions between each two kinds of hosts, half of
// them of one direction. For 100:
//
//	SLUICE_TEST_SCALE=10 go test -tags long -run TestPartition_OfEachKindAgainAndAgain -v -timeout 2h ./internal/systest/distributed
func TestPartition_OfEachKindAgainAndAgain(t *testing.T) {
	// Not parallel: it measures.
	againAndAgain(t, sentinelWithNetwork, [][]kind{{clientPrimary, clientSentinel}, {sentinelSentinel, primaryReplica}, {primarySentinels}})
}

// TestPartition_OfAllHostsAgainAndAgain has as many partitions with all hosts on one of two sides.
func TestPartition_OfAllHostsAgainAndAgain(t *testing.T) {
	// Not parallel: it measures.
	againAndAgain(t, sentinelWithNetwork, [][]kind{{island}, {anywhere}})
}

// TestPartition_OfAClusterAgainAndAgain has partitions between clients and the nodes of a Cluster,
// most of them around one of its primaries.
func TestPartition_OfAClusterAgainAndAgain(t *testing.T) {
	// Not parallel: it measures.
	againAndAgain(t, clusterWithNetwork, [][]kind{{clientPrimary}, {primaryNodes}, {island}})
}

// againAndAgain has the kinds of each list one after the other, and the lists beside each other:
// more servers would be slow for want of processors, and be taken for dead.
func againAndAgain(t *testing.T, start func(t *testing.T) group, lists [][]kind) {
	t.Helper()
	for _, list := range lists {
		t.Run(list[0].name, func(t *testing.T) {
			t.Parallel()
			for _, k := range list {
				t.Run(k.name, func(t *testing.T) { sufferAll(t, start, 10*systest.Scale(), k) })
			}
		})
	}
}
