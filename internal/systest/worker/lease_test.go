package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// Work that takes ten leases is done once, and finished with the newest receipt.
func TestWorker_ExtendsLeasesWhileHandlersRun(t *testing.T) {
	extendLeases(t, 5*time.Minute)
}

// extendLeases runs five handlers for that long, with leases of 30s.
func extendLeases(t *testing.T, long time.Duration) {
	const lease, step = 30 * time.Second, 5*time.Second + 7*time.Millisecond
	onFakeClock(t, &sluice.Worker{Lease: lease, Timeout: -1, Handler: func(ctx context.Context, e sluice.Entry) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(long):
			return nil
		}
	}}, func(f fixture) {
		f.start()
		f.add("0", "1", "2", "3", "4")
		synctest.Wait() // their handlers run
		require.Equal(f, int64(5), f.w.Stats().Running)
		least := lease
		for range long/step - 1 {
			time.Sleep(step)
			least = min(least, time.Until(f.Get("3").LeaseEnds))
			require.Empty(f, f.Claim(10, time.Second), "a task that a handler works on was handed out")
		}
		require.GreaterOrEqual(f, least, lease*2/3-time.Second)
		time.Sleep(long)
		require.Equal(f, sluice.WorkerStats{Done: 5}, f.w.Stats())
		require.NoError(f, f.stop())
	})
}

// When the server does not answer, the handler learns of the lost lease before it can
// end on the server. When the task was cancelled, it learns of it at the next extension.
func TestWorker_HandlerLearnsOfALostLease(t *testing.T) {
	const lease = 30 * time.Second
	log := &systest.Buffer{}
	var lost chan time.Time
	w := &sluice.Worker{Lease: lease, Logger: systest.LogTo(log), Handler: func(ctx context.Context, e sluice.Entry) error {
		<-ctx.Done()
		lost <- time.Now()
		if !errors.Is(context.Cause(ctx), sluice.ErrLost) {
			return context.Cause(ctx)
		}
		return nil // which makes no difference
	}}
	onFakeClock(t, w, func(f fixture) {
		lost = make(chan time.Time, 1) // of the bubble
		f.start()
		f.add("a")
		time.Sleep(15 * time.Second) // it has been extended once
		ends := f.Get("a").LeaseEnds
		require.Greater(f, time.Until(ends), 20*time.Second)
		f.server.SetError("LOADING for long")
		at := <-lost
		require.True(f, at.Before(ends), "the handler went on when another worker could have the task")
		require.Less(f, ends.Sub(at), time.Second, "the handler learnt of it too early")
		f.server.SetError("")
		time.Sleep(5 * time.Second)
		require.Equal(f, int64(1), f.w.Stats().Lost)
		require.Equal(f, int64(1), f.w.Stats().Running, "it is handed out again")
		require.Equal(f, 1, log.Count("cannot use its queue"), log)
		require.Equal(f, 1, log.Count("uses its queue again"), log)

		_, err := f.Q.Cancel(f.Context(), "a")
		require.NoError(f, err)
		cancelled := time.Now()
		require.LessOrEqual(f, (<-lost).Sub(cancelled), lease/3)
		synctest.Wait() // it is counted
		require.Equal(f, sluice.WorkerStats{Lost: 1, Canceled: 1}, f.w.Stats())
		require.NoError(f, f.stop())
		require.Equal(f, 1, log.Count("lease lost"), log)
		require.Equal(f, 1, log.Count("sluice: task canceled"), log)
	})
}

// An outage that is shorter than the lease loses nothing. The worker reports results
// when Redis is back, and asks only now and then before.
func TestWorker_OutageShorterThanTheLeaseCostsNothing(t *testing.T) {
	const lease = 30 * time.Second
	log, calls := &systest.Buffer{}, atomic.Int64{}
	onFakeClock(t, &sluice.Worker{Lease: lease, Logger: systest.LogTo(log), Concurrency: 4, Handler: func(ctx context.Context, e sluice.Entry) error {
		calls.Add(1)
		time.Sleep(5 * time.Second)
		return context.Cause(ctx)
	}}, func(f fixture) {
		f.start()
		for i := range 8 {
			f.add(fmt.Sprint(i))
		}
		synctest.Wait() // the first handlers run
		f.server.SetError("LOADING for a while")
		before := f.server.CommandCount()
		time.Sleep(20 * time.Second)
		require.Less(f, f.server.CommandCount()-before, 100, "it asks all the time")
		require.Equal(f, int64(4), calls.Load())
		f.server.SetError("")
		time.Sleep(1500 * time.Millisecond)
		require.Equal(f, int64(4), f.w.Stats().Done)
		require.Equal(f, int64(8), calls.Load())
		time.Sleep(10 * time.Second)
		require.Equal(f, sluice.WorkerStats{Done: 8}, f.w.Stats())
		require.Equal(f, 1, log.Count("level=WARN"), log)
		require.Equal(f, 1, log.Count("level=INFO"), log)
		require.NoError(f, f.stop())
	})
}

// A result that the worker could not report before the lease ended is dropped.
func TestWorker_DropsResultsWhenTheLeaseHasEnded(t *testing.T) {
	onFakeClock(t, &sluice.Worker{Lease: 10 * time.Second, Handler: func(ctx context.Context, e sluice.Entry) error {
		time.Sleep(time.Second)
		return nil
	}}, func(f fixture) {
		f.start()
		f.add("a")
		time.Sleep(500 * time.Millisecond)
		f.server.SetError("LOADING for long")
		time.Sleep(15 * time.Second)
		require.Equal(f, sluice.WorkerStats{Lost: 1}, f.w.Stats())
		f.server.SetError("")
		time.Sleep(5 * time.Second)
		require.Equal(f, sluice.WorkerStats{Lost: 1, Done: 1}, f.w.Stats(), "it was done again")
		require.NoError(f, f.stop())
	})
}

// Results that Redis did not take until their leases ended are dropped, and then their
// runners are free again.
func TestWorker_RunnersAreFreeAfterAnOutage(t *testing.T) {
	w := &sluice.Worker{Concurrency: 1, Lease: 10 * time.Second, Handler: func(context.Context, sluice.Entry) error {
		time.Sleep(2 * time.Second)
		return nil
	}}
	onFakeClock(t, w, func(f fixture) {
		f.start()
		f.add("a")
		time.Sleep(time.Second)
		f.server.SetError("LOADING for long")
		time.Sleep(20 * time.Second)
		require.Equal(f, sluice.WorkerStats{Lost: 1}, f.w.Stats())
		f.server.SetError("")
		f.add("b")
		time.Sleep(10 * time.Second)
		require.Equal(f, sluice.WorkerStats{Lost: 1, Done: 2}, f.w.Stats())
		require.NoError(f, f.stop())
	})
}

func TestWorker_TimeoutEndsTheHandlersContext(t *testing.T) {
	onFakeClock(t, &sluice.Worker{Timeout: time.Minute, Backoff: systest.After(time.Hour), Handler: func(ctx context.Context, e sluice.Entry) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}}, func(f fixture) {
		f.start()
		f.add("a")
		time.Sleep(59 * time.Second)
		require.Equal(f, sluice.WorkerStats{Running: 1}, f.w.Stats())
		time.Sleep(2 * time.Second)
		require.Equal(f, sluice.WorkerStats{Retried: 1}, f.w.Stats())
		require.NoError(f, f.stop())
	})
}

// The default Backoff is a random time between 0 and 1s, 2s, 4s and so on up to 1h.
func TestWorker_DefaultBackoffIsFullJitter(t *testing.T) {
	const tasks, span = 20, 2 * time.Hour
	onFakeClock(t, &sluice.Worker{Concurrency: 5, Handler: func(context.Context, sluice.Entry) error {
		return errors.New("again")
	}}, func(f fixture) {
		f.start()
		for i := range tasks {
			f.add(fmt.Sprint(i))
		}
		time.Sleep(time.Second)
		require.Greater(f, f.w.Stats().Retried, int64(tasks), "jitter is full")
		time.Sleep(span) // until most are at 1h
		first := f.w.Stats().Retried
		time.Sleep(span)
		want := tasks * span.Hours() * 2 // half an hour on average
		require.InDelta(f, want, f.w.Stats().Retried-first, want/4)
		require.Zero(f, f.w.Stats().Buried, "no limit")
		require.NoError(f, f.stop())
	}, sluice.WithMaxAttempts(-1), sluice.WithPollInterval(time.Hour))
}

// An idle worker sends a command a second, and no more. It stops at once.
func TestWorker_IdleSendsACommandASecond(t *testing.T) {
	onFakeClock(t, &sluice.Worker{Handler: func(context.Context, sluice.Entry) error { return nil }}, func(f fixture) {
		f.start()
		f.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "later", Delay: 30 * 24 * time.Hour})
		time.Sleep(time.Minute + time.Second/2) // between two polls
		before := f.server.CommandCount()
		time.Sleep(10 * time.Minute)
		require.LessOrEqual(f, f.server.CommandCount()-before, 600*6+54*13) // an EVALSHA that runs five commands; and one that runs twelve, each 12 seconds or so
		begun := time.Now()
		require.NoError(f, f.stop())
		require.Zero(f, time.Since(begun))
	})
}

// A notification wakes an idle worker when a task is due before all others, and its
// handler begins without any delay.
func TestWorker_BeginsANewHeadWithoutDelay(t *testing.T) {
	var late []time.Duration
	var enqueued time.Time
	onFakeClock(t, &sluice.Worker{Handler: func(context.Context, sluice.Entry) error {
		late = append(late, time.Since(enqueued))
		return nil
	}}, func(f fixture) {
		f.start()
		f.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "later", Delay: 30 * 24 * time.Hour})
		for i := range 100 {
			time.Sleep(time.Duration(i) * 1234567) // at no fixed point between two polls
			enqueued = time.Now()
			f.add(fmt.Sprint(i))
			f.Eventually(func() bool { return f.w.Stats().Done == int64(i+1) })
		}
		for i, d := range late {
			require.Less(f, d, time.Millisecond, "task %d", i)
		}
		require.Len(f, late, 100)
		require.NoError(f, f.stop())
	}, sluice.WithPollInterval(time.Minute))
}

// The server's clock is a minute off, many leases. Nothing depends on that except Task.At.
func TestWorker_DoesNotDependOnTheServersClock(t *testing.T) {
	for _, off := range []time.Duration{-time.Minute, time.Minute} {
		t.Run(strings.ReplaceAll(off.String(), "-", "minus "), func(t *testing.T) {
			var begun []time.Duration
			var start time.Time
			onFakeClock(t, &sluice.Worker{Lease: 3 * time.Second, Handler: func(ctx context.Context, e sluice.Entry) error {
				begun = append(begun, time.Since(start))
				time.Sleep(10 * time.Second) // three leases
				return ctx.Err()
			}}, func(f fixture) {
				ctx, cancel := context.WithCancel(f.Context())
				defer cancel()
				go func() {
					for ctx.Err() == nil {
						f.server.SetTime(time.Now().Add(off))
						time.Sleep(5 * time.Millisecond)
					}
				}()
				time.Sleep(time.Second)
				f.start()
				start = time.Now()
				at := start.Add(2 * time.Minute)
				for _, task := range []sluice.Task{{ID: "delay", Delay: 30 * time.Second}, {ID: "at", At: at}} {
					_, err := f.Q.Enqueue(ctx, task)
					require.NoError(f, err)
				}
				time.Sleep(4 * time.Minute)
				require.Equal(f, sluice.WorkerStats{Done: 2}, f.w.Stats())
				require.InDelta(f, 30*time.Second, begun[0], float64(10*time.Millisecond))
				require.InDelta(f, 2*time.Minute-off, begun[1], float64(10*time.Millisecond), "At is by the caller's clock, and the server's clock decides what is due")
				require.NoError(f, f.stop())
			})
		})
	}
}

// LeaseValid is true in a handler's ctx and what descends from it, also of a periodic task, until
// the handler has returned.
func TestLeaseValid_IsTrueWhileTheHandlerRuns(t *testing.T) {
	type key struct{}
	var handlers sync.Map
	onFakeClock(t, &sluice.Worker{Lease: 30 * time.Second, Timeout: 10 * time.Second, Grace: time.Minute, Handler: func(ctx context.Context, e sluice.Entry) error {
		derived, cancel := context.WithTimeout(context.WithValue(ctx, key{}, 1), time.Hour)
		cancel()
		handlers.Store(e.ID, derived)
		time.Sleep(time.Minute) // two leases
		if !sluice.LeaseValid(derived) || ctx.Err() == nil {
			panic("not valid, though only Timeout has passed")
		}
		return nil
	}}, func(f fixture) {
		f.w.Periodic = []sluice.Periodic{{ID: "sweep", Schedule: sluice.Every(5 * time.Minute)}}
		f.start()
		f.add("a")
		time.Sleep(11*time.Minute + 30*time.Second)
		require.Equal(f, sluice.WorkerStats{Done: 3}, f.w.Stats())
		for _, id := range []string{"a", "sweep"} {
			ctx, _ := handlers.Load(id)
			require.False(f, sluice.LeaseValid(ctx.(context.Context)))
		}
		require.NoError(f, f.stop())
		var none context.Context
		for _, ctx := range []context.Context{none, f.Context()} {
			require.False(f, sluice.LeaseValid(ctx))
		}
	}, sluice.WithPollInterval(time.Minute))
}

// So it is in the function of KeepAlive, which learns of an end of its lease that no extension has
// told.
func TestLeaseValid_IsTrueWhileKeepAliveRuns(t *testing.T) {
	onFakeClock(t, &sluice.Worker{}, func(f fixture) {
		f.add("a")
		e := f.ClaimOne(time.Minute)
		var inside context.Context
		err := f.Q.KeepAlive(f.Context(), e, 30*time.Second, func(ctx context.Context) error {
			inside = ctx
			time.Sleep(time.Minute)
			require.True(f, sluice.LeaseValid(ctx))
			f.server.SetError("LOADING for long")
			time.Sleep(31 * time.Second)
			f.server.SetError("")
			require.False(f, sluice.LeaseValid(ctx))
			return nil
		})
		require.ErrorIs(f, err, sluice.ErrLost)
		require.False(f, sluice.LeaseValid(inside))
	})
}
