// Package periodic tests what the library promises of the periodic tasks of a Worker.
package periodic

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

func TestMain(m *testing.M) {
	systest.BubbleConnections = 10_000
	systest.Main(m)
}
