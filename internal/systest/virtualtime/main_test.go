// Package virtualtime tests the library on a fake clock: what takes hours takes seconds,
// and what a test measures is exact.
package virtualtime

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

func TestMain(m *testing.M) { systest.Main(m) }
