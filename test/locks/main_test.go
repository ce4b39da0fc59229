// Package locks tests what the library promises of locks: one at a time, several together, permits,
// fences, adoption, and their hooks.
package locks

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

func TestMain(m *testing.M) {
	systest.BubbleConnections = 10_000
	systest.Main(m)
}
