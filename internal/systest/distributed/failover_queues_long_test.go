//go:build long

package distributed

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestQueues_AMillionTasks is TestQueues_KilledWorkersAndMovedSlotsLoseNothing with more tasks. For
// a million:
//
//	SLUICE_TEST_SCALE=50 go test -tags long -run TestQueues_AMillionTasks -v -timeout 1h ./internal/systest/distributed
func TestQueues_AMillionTasks(t *testing.T) {
	t.Parallel()
	workUnderKills(t, redistest.StartCluster(t, leisure...), 20_000*systest.Scale())
}

// TestQueues_Throughput has four worker processes work through many tasks, in one queue and then in
// twelve, which three primaries share. For a million each:
//
//	SLUICE_TEST_SCALE=50 go test -tags long -run TestQueues_Throughput -v -timeout 1h ./internal/systest/distributed
func TestQueues_Throughput(t *testing.T) {
	// Not parallel: it measures.
	cluster, n := redistest.StartCluster(t, leisure...), 20_000*systest.Scale()
	one := throughput(t, cluster, 1, n)
	many := throughput(t, cluster, manyQueues, n)
	t.Logf("%d queues on three primaries beside one: %.2f times the tasks/s", manyQueues, many/one)
}

// throughput returns how many tasks a second four processes get done, and logs what they cost.
// Nothing is killed.
func throughput(t *testing.T, cluster *redistest.Cluster, queues, n int) float64 {
	t.Helper()
	c := newCrew(t, cluster, fmt.Sprint(redistest.Name(t), queues), queues)
	c.hire(4)
	filling, empty := time.Now(), c.nodes()
	c.fill(n, 0, 0)
	filled := time.Since(filling)
	before := c.nodes()
	d := since(empty, before)
	begun := time.Now()
	c.begin()
	c.awaitDrained()
	after := c.nodes()
	client := c.dismiss()
	require.Zero(t, c.check().again)
	took := c.seen.last.Sub(begun)
	t.Logf("%d queues: %d tasks enqueued in %v, done in %v: %.0f tasks/s; the clients' CPU %v a task", queues, n, filled.Round(time.Millisecond),
		took.Round(time.Millisecond), float64(n)/took.Seconds(), client/time.Duration(n))
	for i, node := range since(before, after) {
		if d[i].tasks > 0 {
			t.Logf("  primary %d: %d tasks, %d bytes of keys, %.0f of all data; CPU of the main thread %v for each of its tasks",
				i, d[i].tasks, d[i].memory, d[i].all, node.cpu/time.Duration(d[i].tasks))
		}
	}
	return float64(n) / took.Seconds()
}
