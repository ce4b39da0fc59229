package sluice_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// Every line that a worker logs says which queue it is about.
func TestWorker_LogsNameTheQueue(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		log := &systest.Buffer{}
		w := &sluice.Worker{Queue: b.Q, Lease: time.Second, Logger: systest.LogTo(log), Backoff: systest.After(time.Hour),
			Handler: func(ctx context.Context, e sluice.Entry) error {
				switch e.ID {
				case "panic":
					panic("boom")
				case "permanent":
					return sluice.Permanent(refusal{})
				case "lost":
					require.NoError(b, b.Q.Purge(ctx))
					<-ctx.Done()
				}
				return refusal{}
			}}
		stop := systest.StartWorker(b.T, w)
		for _, id := range []string{"panic", "permanent", "fails", "lost"} {
			b.Enqueue(sluice.Added, sluice.Task{ID: id})
			b.Eventually(func() bool { return log.Count("task="+id) > 0 })
		}
		require.NoError(b, b.RDB.Del(b.Context(), b.Key).Err())
		require.NoError(b, b.RDB.Set(b.Context(), b.Key, "of another type", 0).Err())
		b.Eventually(func() bool { return log.Count("cannot use its queue") > 0 })
		require.NoError(b, b.RDB.Del(b.Context(), b.Key).Err())
		b.Eventually(func() bool { return log.Count("uses its queue again") > 0 })
		require.NoError(b, stop())
		name := "queue=" + strings.TrimPrefix(b.Key, "Queue:") + " "
		for line := range strings.Lines(log.String()) {
			require.Contains(b, line, name)
		}
	})
}

// A task that is cancelled while it is worked on is not lost: the handler's context ends
// with ErrCanceled, and it is counted apart. So is one whose handler returns before it learns.
func TestWorker_CancelledTaskIsNotLost(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		causes, quick := make(chan error, 1), make(chan struct{})
		w := &sluice.Worker{Queue: b.Q, Lease: time.Hour, Handler: func(ctx context.Context, e sluice.Entry) error {
			if e.ID == "quick" {
				_, err := b.Q.Cancel(ctx, e.ID)
				require.NoError(b, err)
				close(quick)
				return nil
			}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return ctx.Err()
		}}
		stop := systest.StartWorker(b.T, w)
		b.Enqueue(sluice.Added, sluice.Task{ID: "slow"})
		b.Eventually(func() bool { return w.Stats().Running == 1 })
		b.Eventually(func() bool { // the worker has subscribed: a cluster's node knows its own subscribers only
			return b.Publish("{"+b.Key+"}:canceled", "another") > 0
		})
		_, err := b.Q.Cancel(b.Context(), "slow")
		require.NoError(b, err)
		b.Eventually(func() bool { return len(causes) > 0 })
		require.Equal(b, sluice.ErrCanceled, <-causes, "at once: the next extension is 20 minutes away")
		b.Enqueue(sluice.Added, sluice.Task{ID: "quick"})
		<-quick
		b.Eventually(func() bool { return w.Stats().Canceled == 2 })
		require.NoError(b, stop())
		require.Equal(b, sluice.WorkerStats{Canceled: 2}, w.Stats())
		b.RequireClean()
	})
}

// TestWorker_CancelledAndEnqueuedAgainIsNotLost: the new version may be there, and even come
// to the same worker, before the worker learns that the old one was cancelled.
func TestWorker_CancelledAndEnqueuedAgainIsNotLost(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		causes := make(chan error, 1)
		w := &sluice.Worker{Queue: b.Q, Lease: time.Hour, Handler: func(ctx context.Context, e sluice.Entry) error {
			if string(e.Payload) == "new" {
				return nil
			}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return ctx.Err()
		}}
		stop := systest.StartWorker(b.T, w)
		b.Eventually(func() bool { // the worker has subscribed: a cluster's node knows its own subscribers only
			return b.Publish("{"+b.Key+"}:canceled", "another") > 0
		})
		const rounds = 10
		for range rounds {
			b.Enqueue(sluice.Added, sluice.Task{ID: "a", Payload: []byte("old")})
			b.Eventually(func() bool { return w.Stats().Running == 1 })
			_, err := b.Q.Cancel(b.Context(), "a")
			require.NoError(b, err)
			b.Enqueue(sluice.Added, sluice.Task{ID: "a", Payload: []byte("new")})
			b.Eventually(func() bool { return len(causes) > 0 })
			require.Equal(b, sluice.ErrCanceled, <-causes)
			b.Eventually(func() bool { return b.Stats() == sluice.Stats{} })
			b.Eventually(func() bool { return w.Stats().Running == 0 })
		}
		require.NoError(b, stop())
		require.Equal(b, sluice.WorkerStats{Canceled: rounds, Done: rounds}, w.Stats())
		b.RequireClean()
	})
}

// A task whose failure is permanent, and that was enqueued again meanwhile, is not buried:
// its new version takes over. The counters and the log say so.
func TestWorker_PermanentFailureLeavesTheWaitingVersion(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		log := &systest.Buffer{}
		w := &sluice.Worker{Queue: b.Q, Logger: systest.LogTo(log), Handler: func(ctx context.Context, e sluice.Entry) error {
			if string(e.Payload) == "old" {
				b.Enqueue(sluice.Deferred, sluice.Task{ID: "a", Payload: []byte("new")})
				return sluice.Permanent(refusal{})
			}
			return nil
		}}
		b.Enqueue(sluice.Added, sluice.Task{ID: "a", Payload: []byte("old")})
		stop := systest.StartWorker(b.T, w)
		b.Eventually(func() bool { return w.Stats().Done == 1 })
		require.NoError(b, stop())
		require.Equal(b, sluice.WorkerStats{Retried: 1, Done: 1}, w.Stats())
		require.Empty(b, b.Dead(1))
		require.Zero(b, log.Count("task buried"), log)
		require.Equal(b, 1, log.Count("its waiting version takes over"), log)
	})
}
