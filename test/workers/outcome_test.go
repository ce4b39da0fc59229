package workers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// Every line that a worker logs says which queue it is about.
func TestWorker_LogsNameTheQueue(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		log := &systest.Buffer{}
		w := &sluice.Worker{Queue: b.Q, Lease: 3 * time.Second, Logger: systest.LogTo(log), Backoff: systest.After(time.Hour),
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
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id})
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
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "slow"})
		b.Eventually(func() bool { return w.Stats().Running == 1 })
		b.Eventually(func() bool { // the worker has subscribed: a cluster's node knows its own subscribers only
			return b.Publish("{"+b.Key+"}:canceled", "another") > 0
		})
		_, err := b.Q.Cancel(b.Context(), "slow")
		require.NoError(b, err)
		b.Eventually(func() bool { return len(causes) > 0 })
		require.Equal(b, sluice.ErrCanceled, <-causes, "at once: the next extension is 20 minutes away")
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "quick"})
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
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("old")})
			b.Eventually(func() bool { return w.Stats().Running == 1 })
			_, err := b.Q.Cancel(b.Context(), "a")
			require.NoError(b, err)
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("new")})
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
				b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "a", Payload: []byte("new")})
				return sluice.Permanent(refusal{})
			}
			return nil
		}}
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("old")})
		stop := systest.StartWorker(b.T, w)
		b.Eventually(func() bool { return w.Stats().Done == 1 })
		require.NoError(b, stop())
		require.Equal(b, sluice.WorkerStats{Retried: 1, Done: 1}, w.Stats())
		require.Empty(b, b.Dead(1))
		require.Zero(b, log.Count("task buried"), log)
		require.Equal(b, 1, log.Count("its waiting version takes over"), log)
	})
}

// TestAgain_UsesNoAttempt, keeps header and payload, and is neither a failure nor a dead letter:
// also on the last attempt, wrapped and joined.
func TestAgain_UsesNoAttempt(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		for attempts := 1; attempts <= 2; attempts++ {
			calls := 0
			log := &systest.Buffer{}
			w := &sluice.Worker{Queue: b.Q, Logger: systest.LogTo(log), Backoff: systest.After(0),
				Handler: func(_ context.Context, e sluice.Entry) error {
					calls++
					require.Equal(b, "payload", string(e.Payload))
					require.Equal(b, map[string]string{"k": "v"}, e.Header)
					switch calls {
					case 1:
						require.Equal(b, 1, e.Attempt)
						return sluice.Again(0)
					case 2:
						require.Equal(b, 1, e.Attempt)
						return fmt.Errorf("status 429: %w", sluice.Again(10*time.Millisecond))
					case 3:
						require.Equal(b, 1, e.Attempt)
						return errors.Join(errors.New("busy"), sluice.Again(-time.Hour))
					case 4:
						require.Equal(b, 1, e.Attempt)
						return errors.New("failed")
					}
					require.Equal(b, 2, e.Attempt)
					if calls == 5 {
						return sluice.Again(0)
					}
					return nil
				}}
			if attempts == 1 { // the first attempt is the last one
				w.Queue = b.On(b.RDB, sluice.WithMaxAttempts(1))
			} else {
				w.Queue = b.On(b.RDB, sluice.WithMaxAttempts(2))
			}
			stop := systest.StartWorker(b.T, w)
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("payload"), Header: map[string]string{"k": "v"}})
			if attempts == 1 {
				b.Eventually(func() bool { return w.Stats().Buried == 1 })
				require.NoError(b, stop())
				require.Equal(b, sluice.WorkerStats{Again: 3, Buried: 1}, w.Stats())
				require.Equal(b, "failed", b.Dead(1)[0].Reason)
				_, err := b.Q.Cancel(b.Context(), "a")
				require.NoError(b, err)
				require.Equal(b, 2, log.Count("task is due again"), "that a task only waits is for LevelDebug")
				require.Equal(b, 1, log.Count("status 429: due again in 10ms"), log)
				require.Zero(b, log.Count("error=\"due again in"), "to come again is no error")
				require.Zero(b, log.Count("attempt failed"), "a dead task is logged once")
				require.Equal(b, 1, log.Count("task buried"))
				continue
			}
			b.Eventually(func() bool { return w.Stats().Done == 1 })
			require.NoError(b, stop())
			require.Equal(b, sluice.WorkerStats{Again: 4, Retried: 1, Done: 1}, w.Stats())
			b.RequireClean()
		}
	})
}

// TestAgain_PermanentWins, in whichever order they are joined or wrapped.
func TestAgain_PermanentWins(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		errs := map[string]error{
			"first":   errors.Join(sluice.Permanent(refusal{}), sluice.Again(time.Hour)),
			"last":    errors.Join(sluice.Again(time.Hour), sluice.Permanent(refusal{})),
			"outside": sluice.Permanent(sluice.Again(time.Hour)),
			"within":  fmt.Errorf("%w, %w", sluice.Again(time.Hour), fmt.Errorf("wrapped: %w", sluice.Permanent(refusal{}))),
		}
		w := &sluice.Worker{Queue: b.Q, Handler: func(_ context.Context, e sluice.Entry) error { return errs[e.ID] }}
		stop := systest.StartWorker(b.T, w)
		for id := range errs {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id})
		}
		b.Eventually(func() bool { return w.Stats().Buried == int64(len(errs)) })
		require.NoError(b, stop())
		require.Zero(b, w.Stats().Again)
	})
}

// TestAgain_AWaitingVersionTakesItsPlace, at its own time.
func TestAgain_AWaitingVersionTakesItsPlace(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		w := &sluice.Worker{Queue: b.Q, Handler: func(_ context.Context, e sluice.Entry) error {
			if string(e.Payload) == "old" {
				b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "a", Payload: []byte("new")})
				return sluice.Again(time.Hour)
			}
			require.Equal(b, 1, e.Attempt)
			return nil
		}}
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("old")})
		stop := systest.StartWorker(b.T, w)
		b.Eventually(func() bool { return w.Stats().Done == 1 })
		require.NoError(b, stop())
		require.Equal(b, sluice.WorkerStats{Again: 1, Done: 1}, w.Stats())
		b.RequireClean()
	})
}

// TestAgain_IsDueExactlyThen, and at most in 100 years.
func TestAgain_IsDueExactlyThen(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		b := systest.NewQueueTest(t, rdb, redistest.Name(t), sluice.WithPollInterval(time.Minute))
		var at []time.Duration
		start := time.Now()
		delays := []time.Duration{time.Hour, -time.Hour, 1500 * time.Millisecond, math.MaxInt64}
		w := &sluice.Worker{Queue: b.Q, Handler: func(_ context.Context, e sluice.Entry) error {
			at = append(at, time.Since(start))
			require.Equal(t, 1, e.Attempt)
			require.WithinDuration(t, time.Now(), e.Due, time.Second)
			return sluice.Again(delays[len(at)-1])
		}}
		stop := systest.StartWorker(t, w)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		time.Sleep(2 * time.Hour)
		require.NoError(t, stop())
		require.Len(t, at, 4)
		for i, want := range []time.Duration{0, time.Hour, time.Hour, time.Hour + 1500*time.Millisecond} {
			require.InDelta(t, want, at[i], float64(5*time.Millisecond), "%v", at)
		}
		require.WithinDuration(t, start.Add(100*365*24*time.Hour), b.Get("a").Due, 100*24*time.Hour)
		time.Sleep(time.Minute) // so that what lingers has ended
	})
}

// TestAgain_OfAStoppedWorker: a result that comes after Grace is still valid.
func TestAgain_OfAStoppedWorker(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		b := systest.NewQueueTest(t, rdb, redistest.Name(t))
		w := &sluice.Worker{Queue: b.Q, Grace: time.Second, Handler: func(ctx context.Context, _ sluice.Entry) error {
			<-ctx.Done()
			require.Equal(t, context.Canceled, context.Cause(ctx))
			return errors.Join(ctx.Err(), sluice.Again(time.Hour))
		}}
		stop := systest.StartWorker(t, w)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		synctest.Wait() // its handler runs
		require.NoError(t, stop())
		require.Equal(t, sluice.WorkerStats{Again: 1}, w.Stats())
		e := b.Get("a")
		require.Zero(t, e.Attempt)
		require.WithinDuration(t, time.Now().Add(time.Hour), e.Due, time.Second)
		time.Sleep(time.Minute) // so that what lingers has ended
	})
}

// TestAgain_AfterUnseenDeliveries: a delivery that was not counted, since nothing was heard of its
// holder, is not taken off twice.
func TestAgain_AfterUnseenDeliveries(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		b := systest.NewQueueTest(t, rdb, redistest.Name(t))
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		require.NoError(t, b.Q.Retry(t.Context(), 0, "failed", b.ClaimOne(time.Second))) // one attempt that counts
		for range 2 {
			require.Equal(t, 2, b.ClaimOne(time.Second).Attempt)
			time.Sleep(2 * time.Second)
		}
		var attempts []int
		w := &sluice.Worker{Queue: b.Q, Handler: func(_ context.Context, e sluice.Entry) error {
			attempts = append(attempts, e.Attempt)
			if len(attempts) == 4 {
				return nil
			}
			return sluice.Again(time.Second)
		}}
		stop := systest.StartWorker(t, w)
		time.Sleep(10 * time.Second)
		require.NoError(t, stop())
		require.Equal(t, []int{2, 2, 2, 2}, attempts)
		b.RequireClean()
		time.Sleep(time.Minute) // so that what lingers has ended
	})
}
