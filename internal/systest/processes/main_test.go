// Package processes tests several processes at once: some of them are killed or stopped.
package processes

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

func TestMain(m *testing.M) { systest.Main(m) }
