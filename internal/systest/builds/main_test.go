// Package builds tests the build of now beside the build before, on one server: their processes
// share locks.
package builds

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

func TestMain(m *testing.M) { systest.Main(m) }
