//go:build long

package worker

import (
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/systest"
)

// Work that takes more than a hundred leases.
func TestWorker_ExtendsLeasesForAnHour(t *testing.T) { extendLeases(t, time.Hour) }

func TestWorker_SurvivesALongRestartOfTheServer(t *testing.T) { surviveRestart(t, 10*time.Second) }

func TestWorker_ManyKilledProcessesLoseNothing(t *testing.T) {
	killWorkers(t, 8, 10_000*systest.Scale(), time.Second, 30*time.Second)
}

func TestWorker_IsNeverEarlyUnderLoad(t *testing.T) {
	measureLateness(t, 10_000*systest.Scale(), 5*time.Second)
}

// SLUICE_TEST_SCALE=17 takes ten minutes.
func TestPeriodic_ManyProcessesAreKilled(t *testing.T) {
	killPeriodic(t, 8, 20, time.Duration(systest.Scale())*35*time.Second)
}
