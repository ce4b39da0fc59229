// Package partition tests the library while links are cut between clients, a primary, its replicas
// and sentinels, in one direction or both.
package partition

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

func TestMain(m *testing.M) { systest.Main(m) }
