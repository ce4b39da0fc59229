//go:build long

package distributed

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

// TestCluster_SlotMigrationAgainAndAgain is TestCluster_SlotMigrationLosesNothing with more
// moves. For 500:
//
//	SLUICE_TEST_SCALE=25 go test -tags long -run TestCluster_SlotMigrationAgainAndAgain -v -timeout 30m ./internal/systest/distributed
func TestCluster_SlotMigrationAgainAndAgain(t *testing.T) {
	migrate(t, 20*systest.Scale())
}
