// Package workers tests what the library promises of Worker, Pool and Mux: which handler a task
// gets, and what its result decides.
package workers

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

func TestMain(m *testing.M) {
	systest.BubbleConnections = 10_000
	systest.Main(m)
}
