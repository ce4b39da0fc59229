package queues

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestLimits_OfAWorker: its queue has them before the first claim, and again when the server has
// lost them. What an operator has set stays, be it no limits; so does a pause.
func TestLimits_OfAWorker(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		b, ctx := systest.NewQueueTest(t, rdb, "q", sluice.WithPollInterval(time.Second)), t.Context()
		own := sluice.Limits{Running: 2, Rate: 100, Per: time.Second, Burst: 50}
		enqueueMany(b, 0, 20)
		var log systest.Buffer
		w := &sluice.Worker{Queue: b.Q, Limits: own, Logger: systest.LogTo(&log), Handler: func(context.Context, sluice.Entry) error {
			time.Sleep(10 * time.Second)
			return nil
		}}
		stop := systest.StartWorker(t, w)
		for range 95 {
			time.Sleep(time.Second)
			require.LessOrEqual(t, w.Stats().Running, int64(2))
		}
		require.Equal(t, own, b.Stats().Limits)
		require.Equal(t, 1, log.Count("the queue had no limits"))
		for _, byHand := range []sluice.Limits{{Running: 5}, {}} {
			require.NoError(t, b.Q.SetLimits(ctx, byHand))
			time.Sleep(3 * time.Minute)
			require.Equal(t, byHand, b.Stats().Limits)
		}
		require.Equal(t, 1, log.Count("the queue had no limits"))

		m.FlushAll()
		require.NoError(t, b.Q.Pause(ctx, time.Hour))
		until := b.Stats().PausedUntil
		time.Sleep(80 * time.Second)
		require.Equal(t, own, b.Stats().Limits)
		require.WithinDuration(t, until, b.Stats().PausedUntil, 10*time.Millisecond)
		require.Equal(t, 2, log.Count("the queue had no limits"))
		require.NoError(t, stop())
		time.Sleep(time.Minute)
	})
}

// TestLimits_OfAWorkerThatDiffer from the queue's have no effect, and its log says so once.
func TestLimits_OfAWorkerThatDiffer(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		b := systest.NewQueueTest(t, rdb, "q")
		for _, c := range []struct{ rate, told int }{{50, 0}, {50, 0}, {500, 1}} {
			var log systest.Buffer
			stop := systest.StartWorker(t, &sluice.Worker{Queue: b.Q, Limits: sluice.Limits{Rate: c.rate}, Logger: systest.LogTo(&log), Handler: nothing})
			time.Sleep(5 * time.Minute)
			require.NoError(t, stop())
			require.Equal(t, c.told, log.Count("the queue has other limits than this worker says, and keeps them: to change them, call SetLimits"), log.String())
			require.Equal(t, sluice.Limits{Rate: 50, Per: time.Second, Burst: 1}, b.Stats().Limits)
		}
		time.Sleep(time.Minute)
	})
}

// TestLimits_OfAWorkerWithoutAServer: they are set when there is one, before anything is claimed, and
// the log says that they were not. Limits that SetLimits would refuse are ErrInvalid.
func TestLimits_OfAWorkerWithoutAServer(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		b := systest.NewQueueTest(t, rdb, "q")
		var log systest.Buffer
		stop := systest.StartWorker(t, &sluice.Worker{Queue: b.Q, Handler: nothing})
		time.Sleep(time.Second)
		require.NoError(t, stop()) // the server knows how to claim, and not yet how to limit
		m.SetError("LOADING for a while")
		var running, handled atomic.Int64
		w := &sluice.Worker{Queue: b.Q, Limits: sluice.Limits{Running: 1}, Logger: systest.LogTo(&log), Handler: func(context.Context, sluice.Entry) error {
			require.EqualValues(t, 1, running.Add(1))
			time.Sleep(time.Second)
			running.Add(-1)
			handled.Add(1)
			return nil
		}}
		stop = systest.StartWorker(t, w)
		time.Sleep(10 * time.Second)
		require.Equal(t, 1, log.Count("worker cannot see to the queue's limits"))
		m.SetError("")
		enqueueMany(b, 0, 10)
		time.Sleep(80 * time.Second)
		require.EqualValues(t, 10, handled.Load())
		require.Equal(t, sluice.Limits{Running: 1}, b.Stats().Limits)
		require.NoError(t, stop())
		time.Sleep(time.Minute)
	})
	q, err := sluice.NewQueue(systest.Dial(t, redis.Options{Addr: "127.0.0.1:1"}), "q")
	require.NoError(t, err)
	bad := &sluice.Worker{Queue: q, Limits: sluice.Limits{Burst: 1}, Handler: nothing}
	require.ErrorIs(t, bad.Run(systest.Ended()), sluice.ErrInvalid)
}

// TestLimits_OfAHungServerDelayNoOther: a worker of the same Pool begins at once.
func TestLimits_OfAHungServerDelayNoOther(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		faults := redistest.NewFaults(systest.BubbleDialer(m))
		hung := systest.BubbleClient(t, faults.Dial)
		defer hung.Close()
		faults.Stall()
		defer faults.Resume()
		q, err := sluice.NewQueue(hung, "hung")
		require.NoError(t, err)
		b := systest.NewQueueTest(t, rdb, "q")
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		handled := make(chan struct{})
		workers := []*sluice.Worker{
			{Queue: q, Limits: sluice.Limits{Running: 1}, Handler: nothing},
			{Queue: b.Q, Handler: func(context.Context, sluice.Entry) error { close(handled); return nil }},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended, began := make(chan error, 1), time.Now()
		go func() { ended <- (&sluice.Pool{Workers: workers, Logger: slog.New(slog.DiscardHandler)}).Run(ctx) }()
		<-handled
		require.Less(t, time.Since(began), time.Second)
		cancel()
		<-ended
		time.Sleep(time.Minute)
	})
}
