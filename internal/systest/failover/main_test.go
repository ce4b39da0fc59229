// Package failover tests the library while a primary fails, behind Sentinel and on a
// Cluster, and while slots of a Cluster move.
package failover

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

func TestMain(m *testing.M) { systest.Main(m) }
