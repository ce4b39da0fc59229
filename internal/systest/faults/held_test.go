package faults

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestLocker_HoldsManyLocks holds locks with auto-renewal: none is lost, and holding them
// takes a few goroutines and a pipeline now and then.
func TestLocker_HoldsManyLocks(t *testing.T) {
	// Not parallel: it counts goroutines.
	hold(t, 1000*systest.Scale(), 6*time.Second, 5*time.Second)
}

// hold holds n locks for a while. How often they are renewed at the least and at the most
// is exact on the fake clock: see TestLocker_RenewsManyLocksInFewPipelines.
func hold(t *testing.T, n int, ttl, heldFor time.Duration) {
	t.Helper()
	ctx, s := t.Context(), redistest.Start(t)
	rdb := s.Client(t)
	var pipelines systest.Pipelines
	rdb.AddHook(&pipelines)
	l := systest.NewLocker(t, rdb, sluice.WithTTL(ttl), sluice.WithAutoRenew())
	before := len(systest.Goroutines()) // of tests before
	locks := make([]*sluice.Lock, n)
	var taking sync.WaitGroup
	for part := range 20 {
		taking.Go(func() {
			for i := part; i < n; i += 20 {
				var err error
				if locks[i], err = l.Lock(ctx, fmt.Sprint("held ", i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	taking.Wait()
	require.False(t, t.Failed())
	// Half of them are used as they usually are.
	for _, k := range locks[:n/2] {
		require.NoError(t, k.Context().Err())
	}
	scripts := scriptsRun(t, rdb)
	pipelines.Reset()
	start := time.Now()
	var most atomic.Int64
	require.Eventually(t, func() bool { return len(systest.Goroutines())-before <= 10 }, heldFor/2, 10*time.Millisecond, "those that took them stay")
	require.Never(t, func() bool {
		most.Store(max(most.Load(), int64(len(systest.Goroutines())-before)))
		return most.Load() > 10 // three; more when a busy machine is late with a batch
	}, time.Until(start.Add(heldFor)), 10*time.Millisecond)
	took := time.Since(start).Seconds()
	sent, renewals := pipelines.Sent.Load(), pipelines.Commands.Load()
	scripts = scriptsRun(t, rdb) - scripts
	valid := 0
	for _, k := range locks {
		if k.Valid() && (k.Context().Err() == nil) {
			valid++
		}
	}
	require.Equal(t, n, valid, "locks were lost")
	require.Equal(t, int64(n), rdb.DBSize(ctx).Val())
	t.Logf("%d locks of %v for %.1fs: %d goroutines at the most; per second, %.1f pipelines with %.0f commands, %.0f scripts run",
		n, ttl, took, most.Load(), float64(sent)/took, float64(renewals)/took, float64(scripts)/took)
	require.GreaterOrEqual(t, renewals, int64(n))
	require.LessOrEqual(t, sent, max(renewals/20, 20), "pipelines of a few")
	require.NoError(t, l.UnlockAll(ctx))
	require.Zero(t, rdb.DBSize(ctx).Val())
}
