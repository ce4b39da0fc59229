package worker

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestWorker_ExtendsManyLeasesAtLittleCost, also when the server has forgotten its scripts: five
// thousand handlers run, and none loses its lease.
func TestWorker_ExtendsManyLeasesAtLittleCost(t *testing.T) {
	redistest.NotShort(t)
	t.Parallel()
	const n, bytesPerTask = 5000, 100
	s := redistest.Start(t) // its own: others call scripts too
	ctx, admin := t.Context(), s.Client(t)
	rdb, faults := s.Faulty(t)
	b := systest.NewQueueTest(t, rdb, redistest.Name(t))
	tasks := make([]sluice.Task, n)
	for i := range tasks {
		tasks[i] = sluice.Task{ID: fmt.Sprintf("%08d-1234-4321-abcd-0123456789ab", i)}
	}
	_, err := b.Q.EnqueueBatch(ctx, tasks)
	require.NoError(t, err)
	finish := make(chan struct{})
	var ended atomic.Int64
	w := &sluice.Worker{Queue: b.Q, Concurrency: n, Lease: 15 * time.Second, Handler: func(ctx context.Context, _ sluice.Entry) error {
		select {
		case <-finish:
		case <-ctx.Done():
			ended.Add(1)
		}
		return nil
	}}
	stop := systest.StartWorker(t, w)
	b.Eventually(func() bool { return w.Stats().Running == n })
	last, err := admin.ZRangeWithScores(ctx, b.Key, -1, -1).Result()
	require.NoError(t, err)
	require.NoError(t, admin.ScriptFlush(ctx).Err())
	require.NoError(t, admin.ConfigResetStat(ctx).Err())
	before := faults.Bytes()
	opts := redis.ZRangeBy{Min: "-inf", Max: strconv.FormatFloat(last[0].Score, 'f', -1, 64)}
	b.Eventually(func() bool { return admin.ZCount(ctx, b.Key, opts.Min, opts.Max).Val() == 0 }) // all were extended
	perTask, full := (faults.Bytes()-before)/n, redistest.Calls(t, admin, "eval")
	t.Logf("%d bytes a task; %d scripts in full; %v", perTask, full, admin.InfoMap(ctx, "commandstats").Val()["Commandstats"]["cmdstat_evalsha"])
	require.LessOrEqual(t, perTask, bytesPerTask)
	require.LessOrEqual(t, full, 4, "one, or on a machine that stands still as many as are under way")
	close(finish)
	b.Eventually(func() bool { return w.Stats().Running == 0 })
	require.NoError(t, stop())
	require.Zero(t, ended.Load())
	require.Equal(t, sluice.WorkerStats{Done: n}, w.Stats())
}
