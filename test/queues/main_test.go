// Package queues tests what the library promises of queues: what becomes of tasks, limits,
// retention, and the wait for what is due.
package queues

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

func TestMain(m *testing.M) {
	systest.BubbleConnections = 10_000
	systest.Main(m)
}
