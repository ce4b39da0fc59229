// Package worker tests queues and workers as a whole: on the fake clock, beside faults
// of the network and the server, with processes that are killed, and with data of
// another origin.
package worker

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest"
)

func TestMain(m *testing.M) { systest.Main(m) }
