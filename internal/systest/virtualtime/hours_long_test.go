//go:build long

package virtualtime

import (
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/systest"
)

// TestHours_OfLocksAtLength is TestHours_OfLocksUnderFaults for half an hour. For a day:
//
//	SLUICE_TEST_SCALE=48 go test -tags long -run AtLength -v -timeout 2h ./internal/systest/virtualtime
func TestHours_OfLocksAtLength(t *testing.T) {
	locksUnderFaults(t, 30*time.Minute*time.Duration(systest.Scale()))
}

// TestHours_OfTasksAtLength is TestHours_OfTasksUnderFaults for half an hour.
func TestHours_OfTasksAtLength(t *testing.T) {
	tasksUnderFaults(t, 30*time.Minute*time.Duration(systest.Scale()))
}
