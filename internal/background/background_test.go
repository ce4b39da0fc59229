package background_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/background"
)

func TestGroup_WaitsUntilNothingIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g background.Group
		start := time.Now()
		g.Wait(t.Context()) // nothing is
		require.Zero(t, time.Since(start))
		g.Go(func() {
			time.Sleep(time.Second)
			g.Go(func() { time.Sleep(time.Second) }) // the count rises while Wait waits
		})
		g.Wait(t.Context())
		require.Equal(t, 2*time.Second, time.Since(start))
	})
}

func TestGroup_WaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g background.Group
		g.Go(func() { time.Sleep(time.Minute) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		g.Wait(ctx)
		require.Equal(t, time.Second, time.Since(start))
		g.Wait(t.Context())
		require.Equal(t, time.Minute, time.Since(start))
	})
}

func TestLoop_RunsOnlyWhileThereIsWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g background.Group
		var work, turns atomic.Int64
		l := background.NewLoop(g.Go, func() time.Duration {
			turns.Add(1)
			if work.Load() == 0 {
				return background.Idle
			}
			work.Add(-1)
			return time.Second
		})
		synctest.Wait()
		require.Zero(t, turns.Load(), "it runs before the first Wake")
		start := time.Now()
		work.Store(3)
		l.Wake()
		g.Wait(t.Context())
		require.Equal(t, 3*time.Second, time.Since(start))
		require.EqualValues(t, 4, turns.Load())

		work.Store(1) // and starts again
		l.Wake()
		g.Wait(t.Context())
		require.Zero(t, work.Load())
	})
}

func TestLoop_WakeEndsThePause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g background.Group
		var done atomic.Bool
		l := background.NewLoop(g.Go, func() time.Duration {
			if done.Load() {
				return background.Idle
			}
			return time.Hour
		})
		start := time.Now()
		l.Wake()
		synctest.Wait()
		done.Store(true)
		l.Wake()
		g.Wait(t.Context())
		require.Zero(t, time.Since(start))
	})
}

// TestLoop_NeverMissesAWake adds work from several goroutines while the loop keeps
// ending: whatever was added before a Wake is done.
func TestLoop_NeverMissesAWake(t *testing.T) {
	t.Parallel()
	var g background.Group
	var work atomic.Int64
	l := background.NewLoop(g.Go, func() time.Duration {
		if work.Load() == 0 {
			return background.Idle
		}
		work.Add(-1)
		return 0
	})
	var producers background.Group
	for range 4 {
		producers.Go(func() {
			for range 20_000 {
				work.Add(1)
				l.Wake()
			}
		})
	}
	producers.Wait(t.Context())
	g.Wait(t.Context())
	require.Zero(t, work.Load())
}
