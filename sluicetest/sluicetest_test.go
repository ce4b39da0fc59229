package sluicetest_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/sluicetest"
)

// eventTimeout is how long tests wait for an event that has to come.
const eventTimeout = 30 * time.Second

// start runs a worker, and returns a function that stops it.
func start(t *testing.T, w *sluice.Worker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(t, <-ended)
	}
}

// TestRedis_AWeekTakesMilliseconds: delays, renewals, extensions, retries and TTLs of a week.
func TestRedis_AWeekTakesMilliseconds(t *testing.T) {
	t.Parallel()
	const day, week = 24 * time.Hour, 7 * 24 * time.Hour
	began := time.Now()
	synctest.Test(t, func(t *testing.T) {
		r := sluicetest.New(t)
		queue, err := sluice.NewQueue(r.Client(), "reports", sluice.WithPollInterval(time.Hour))
		require.NoError(t, err)
		start0, runs, long := r.Now(), map[time.Duration]int{}, make(chan error, 1)
		stop := start(t, &sluice.Worker{
			Queue: queue, Lease: time.Hour, Timeout: -1,
			Backoff: func(int, error) time.Duration { return 12 * time.Hour },
			Handler: func(ctx context.Context, e sluice.Entry) error {
				switch e.ID {
				case "long":
					select {
					case <-time.After(2 * day): // 48 leases
					case <-ctx.Done():
					}
					long <- ctx.Err()
				case "fails":
					return errors.New("no")
				case "daily":
					runs[time.Since(start0).Truncate(time.Second)]++
					_, err := queue.Enqueue(ctx, sluice.Task{ID: "daily", Delay: day})
					return err
				}
				return nil
			},
		})
		locker, err := sluice.NewLocker(r.NewClient(), sluice.WithTTL(time.Hour), sluice.WithAutoRenew())
		require.NoError(t, err)
		lock, err := locker.Lock(t.Context(), "leader")
		require.NoError(t, err)
		for id, delay := range map[string]time.Duration{"daily": day, "long": 3 * day, "fails": 6 * day, "later": week + time.Hour} {
			_, err = queue.Enqueue(t.Context(), sluice.Task{ID: id, Delay: delay})
			require.NoError(t, err)
		}

		r.Advance(week + time.Minute)
		require.Equal(t, start0.Add(week+time.Minute), r.Now())
		require.Equal(t, map[time.Duration]int{day: 1, 2 * day: 1, 3 * day: 1, 4 * day: 1, 5 * day: 1, 6 * day: 1, week: 1}, runs)
		require.NoError(t, <-long, "the lease was extended all the time")
		require.True(t, lock.Valid())
		info, err := locker.Inspect(t.Context(), "leader")
		require.NoError(t, err)
		require.True(t, info.Held)
		require.Equal(t, 3, r.RequireEnqueued("reports", "fails").Attempt)
		require.Equal(t, 59*time.Minute, r.RequireEnqueued("reports", "later").Due.Sub(r.Now()).Round(time.Millisecond))
		require.Len(t, r.Scheduled("reports"), 3)
		require.NoError(t, locker.Close())
		stop()
	})
	t.Logf("a week took %v", time.Since(began))
	require.Less(t, time.Since(began), 3*time.Minute) // by the race detector, beside other tests
}

// TestRedis_TimesAreExactInABubble: nothing happens too early, and Advance waits for what happens.
func TestRedis_TimesAreExactInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := sluicetest.New(t)
		locker, err := sluice.NewLocker(r.Client(), sluice.WithTTL(time.Minute))
		require.NoError(t, err)
		_, err = locker.TryLock(t.Context(), "stock")
		require.NoError(t, err)
		other, err := sluice.NewLocker(r.NewClient())
		require.NoError(t, err)
		var got atomic.Bool
		go func() {
			_, err := other.Lock(t.Context(), "stock")
			got.Store(err == nil)
		}()
		queue, err := sluice.NewQueue(r.Client(), "q")
		require.NoError(t, err)
		_, err = queue.Enqueue(t.Context(), sluice.Task{ID: "a", Delay: time.Hour})
		require.NoError(t, err)
		r.Advance(time.Minute - time.Millisecond)
		require.False(t, got.Load())
		r.Advance(time.Second)
		require.True(t, got.Load(), "the TTL has ended")

		r.Advance(r.Scheduled("q")[0].Due.Sub(r.Now()) - time.Microsecond)
		require.Empty(t, r.Due("q"))
		r.Advance(time.Microsecond)
		require.Len(t, r.Due("q"), 1)

		var enqueued atomic.Int64
		for i := range 20 {
			time.AfterFunc(time.Hour, func() {
				_, _ = queue.Enqueue(t.Context(), sluice.Task{ID: time.Duration(i).String()})
				enqueued.Add(1)
			})
		}
		r.Advance(time.Hour)
		require.EqualValues(t, 20, enqueued.Load(), "what is due when Advance ends has happened")
		require.NoError(t, locker.Close())
		require.NoError(t, other.Close())
	})
}

// TestRedis_AdvanceWakesThoseWhoWaitOutsideABubble: hours pass on the server, none in the test.
func TestRedis_AdvanceWakesThoseWhoWaitOutsideABubble(t *testing.T) {
	t.Parallel()
	r := sluicetest.New(t)
	queue, err := sluice.NewQueue(r.Client(), "orders", sluice.WithPollInterval(time.Hour))
	require.NoError(t, err)
	handled := make(chan string, 10)
	stop := start(t, &sluice.Worker{Queue: queue, Lease: time.Hour, Handler: func(_ context.Context, e sluice.Entry) error {
		handled <- e.ID
		if e.Attempt == 1 {
			return errors.New("once more")
		}
		return nil
	}, Backoff: func(int, error) time.Duration { return 10 * time.Hour }})
	_, err = queue.Enqueue(t.Context(), sluice.Task{ID: "a", Delay: 20 * time.Hour})
	require.NoError(t, err)
	handles := func() {
		t.Helper()
		select {
		case id := <-handled:
			require.Equal(t, "a", id)
		case <-time.After(eventTimeout):
			require.Fail(t, "the worker was not woken")
		}
	}

	locker, err := sluice.NewLocker(r.Client(), sluice.WithTTL(10*time.Hour), sluice.WithRetryInterval(time.Hour))
	require.NoError(t, err)
	defer locker.Close()
	other, err := sluice.NewLocker(r.NewClient(), sluice.WithRetryInterval(time.Hour))
	require.NoError(t, err)
	defer other.Close()
	_, err = locker.Lock(t.Context(), "stock")
	require.NoError(t, err)
	locked := make(chan error, 1)
	go func() {
		_, err := other.Lock(t.Context(), "stock")
		locked <- err
	}()

	require.InDelta(t, float64(20*time.Hour), float64(r.RequireEnqueued("orders", "a").Due.Sub(r.Now())), float64(time.Minute))
	r.Advance(9 * time.Hour)
	require.Empty(t, handled)
	require.Empty(t, locked)
	r.Advance(11*time.Hour + time.Second)
	handles()
	select {
	case err := <-locked:
		require.NoError(t, err)
	case <-time.After(eventTimeout):
		require.Fail(t, "the waiter was not woken")
	}
	require.Eventually(t, func() bool { return len(r.Scheduled("orders")) == 1 }, eventTimeout, time.Millisecond)
	r.Advance(10*time.Hour + time.Second)
	handles()
	waits := func() bool { return r.Stats("orders").Waiting == 1 }
	require.Eventually(t, waits, eventTimeout, time.Millisecond, "the Worker waits")
	r.RequireEmpty("orders")
	stop()
}

// TestRedis_TheServersClockRunsOutsideABubble: delays also pass by themselves, so that no two
// claims have one receipt.
func TestRedis_TheServersClockRunsOutsideABubble(t *testing.T) {
	t.Parallel()
	r := sluicetest.New(t)
	require.InDelta(t, 0, float64(time.Since(r.Now())), float64(time.Minute))
	r.Advance(time.Hour)
	queue, err := sluice.NewQueue(r.Client(), "q")
	require.NoError(t, err)
	_, err = queue.Enqueue(t.Context(), sluice.Task{ID: "a", Delay: 20 * time.Millisecond})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), eventTimeout)
	defer cancel()
	require.NoError(t, queue.Wait(ctx))
	first, err := queue.Claim(ctx, 1, time.Hour)
	require.NoError(t, err)
	require.Len(t, first, 1)
	require.NoError(t, queue.Release(ctx, first...))
	second, err := queue.Claim(ctx, 1, time.Hour)
	require.NoError(t, err)
	require.ErrorIs(t, queue.Dequeue(ctx, first...), sluice.ErrStale)
	require.NoError(t, queue.Dequeue(ctx, second...))
}

// TestRedis_ALongPipelineBlocksNoEnd: in both clocks.
func TestRedis_ALongPipelineBlocksNoEnd(t *testing.T) {
	t.Parallel()
	long := func(t *testing.T) {
		r := sluicetest.New(t)
		queue, err := sluice.NewQueue(r.Client(), "q")
		require.NoError(t, err)
		tasks := make([]sluice.Task, 3000)
		for i := range tasks {
			tasks[i] = sluice.Task{ID: time.Duration(i).String(), Payload: make([]byte, 1000)}
		}
		_, err = queue.EnqueueBatch(t.Context(), tasks)
		require.NoError(t, err)
		r.Advance(time.Second) // the tasks of a batch are due a microsecond apart
		require.Equal(t, len(tasks), len(r.Due("q")))
		pipe := r.Client().Pipeline()
		for range 10000 {
			pipe.Echo(t.Context(), "some text that is not short")
		}
		_, err = pipe.Exec(t.Context())
		require.NoError(t, err)
	}
	synctest.Test(t, long)
	t.Run("outside", long)
}

// TestRedis_LeavesNoGoroutine: it ends with its test. It runs alone: it looks at the whole process.
func TestRedis_LeavesNoGoroutine(t *testing.T) {
	redistest.NotShort(t)
	use := func(t *testing.T) {
		r := sluicetest.New(t)
		queue, err := sluice.NewQueue(r.NewClient(), "q")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, queue.Wait(ctx), context.DeadlineExceeded)
		locker, err := sluice.NewLocker(r.Client())
		require.NoError(t, err)
		require.NoError(t, locker.Do(t.Context(), "a", func(context.Context) error { return nil }))
		require.NoError(t, locker.Close())
	}
	t.Run("outside", use)
	systest.RequireNoGoroutines(t)
	synctest.Test(t, use) // waits for its goroutines by itself
	systest.RequireNoGoroutines(t)
}

// TestRedis_ParallelTestsShareNothing: not their tasks, and not their clocks.
func TestRedis_ParallelTestsShareNothing(t *testing.T) {
	t.Parallel()
	for i := range 20 {
		use := func(t *testing.T) {
			r := sluicetest.New(t)
			began := r.Now()
			queue, err := sluice.NewQueue(r.Client(), "same")
			require.NoError(t, err)
			for j := range i {
				_, err := queue.Enqueue(t.Context(), sluice.Task{ID: time.Duration(j).String(), Delay: time.Hour})
				require.NoError(t, err)
				r.Advance(time.Hour)
			}
			require.Len(t, r.Due("same"), i)
			require.InDelta(t, float64(time.Duration(i)*time.Hour), float64(r.Now().Sub(began)), float64(eventTimeout))
		}
		t.Run("outside", func(t *testing.T) {
			t.Parallel()
			use(t)
		})
		t.Run("bubble", func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, use)
		})
	}
}

// TestRedis_ALimitFollowsTheClock: a Worker gets as many tasks as the rate lets go by then, and no
// more run than may.
func TestRedis_ALimitFollowsTheClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := sluicetest.New(t)
		q, err := sluice.NewQueue(r.Client(), "mails", sluice.WithPollInterval(time.Hour))
		require.NoError(t, err)
		limits := sluice.Limits{Running: 2, Rate: 10, Per: time.Hour, Burst: 3}
		require.NoError(t, q.SetLimits(t.Context(), limits))
		require.Equal(t, limits, r.Stats("mails").Limits)
		for i := range 9 {
			_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(i)})
			require.NoError(t, err)
		}
		var handled, running atomic.Int64
		stop := start(t, &sluice.Worker{Queue: q, Concurrency: 5, Handler: func(context.Context, sluice.Entry) error {
			if running.Add(1) > 2 {
				t.Error("more than two run")
			}
			time.Sleep(time.Second)
			running.Add(-1)
			handled.Add(1)
			return nil
		}})
		r.Advance(3 * time.Second)
		require.EqualValues(t, 3, handled.Load(), "the burst")
		r.Advance(6*time.Minute - 3*time.Second - time.Millisecond)
		require.Len(t, r.Due("mails"), 6, "the next one may go six minutes after the first")
		r.Advance(2 * time.Second)
		require.EqualValues(t, 4, handled.Load())
		r.Advance(12 * time.Minute)
		require.EqualValues(t, 6, handled.Load())
		require.NoError(t, q.SetLimits(t.Context(), sluice.Limits{Running: 2})) // and no rate any more
		r.Advance(3 * time.Second)
		r.RequireEmpty("mails")
		stop()
	})
}

// TestRedis_PeriodicTasksAreNoneOfTheTests: a queue is empty beside what its worker's list keeps in
// it.
func TestRedis_PeriodicTasksAreNoneOfTheTests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := sluicetest.New(t)
		q, err := sluice.NewQueue(r.Client(), "orders", sluice.WithPollInterval(time.Hour))
		require.NoError(t, err)
		var handled []string
		w := &sluice.Worker{
			Queue: q, Periodic: []sluice.Periodic{{ID: "sweep", Schedule: sluice.Every(time.Hour)}},
			Handler: func(_ context.Context, e sluice.Entry) error {
				handled = append(handled, e.ID)
				return nil
			},
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- w.Run(ctx) }()
		_, err = q.Enqueue(t.Context(), sluice.Task{ID: "order-1", Delay: 15 * time.Minute})
		require.NoError(t, err)
		r.Advance(time.Hour + time.Second)
		require.ElementsMatch(t, []string{"order-1", "sweep"}, handled)
		r.RequireEmpty("orders")
		require.Len(t, r.Scheduled("orders"), 1, "the next sweep")
		stop()
		require.NoError(t, <-ended)
	})
}
