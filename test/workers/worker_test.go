package workers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

func TestWorker_HandlesEveryTaskOnce(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		n := max(b.Sized(1500), 300) // more than a step
		tasks := make([]sluice.Task, n)
		for i := range tasks {
			tasks[i] = sluice.Task{ID: fmt.Sprint(i), Payload: []byte("p" + fmt.Sprint(i)), Delay: rand.N(200 * time.Millisecond)}
		}
		_, err := b.Q.EnqueueBatch(b.Context(), tasks)
		require.NoError(b, err)
		var running, most atomic.Int64
		var times sync.Map
		w := &sluice.Worker{Queue: b.Q, Concurrency: n * 2 / 5, Handler: func(_ context.Context, e sluice.Entry) error {
			if now := running.Add(1); now > most.Load() {
				most.Store(now)
			}
			defer running.Add(-1)
			if _, again := times.LoadOrStore(e.ID, true); again || "p"+e.ID != string(e.Payload) || e.Attempt != 1 {
				return errors.New("not as it was enqueued")
			}
			return nil
		}}
		stop := systest.StartWorker(b.T, w)
		b.RequireDrained()
		require.NoError(b, stop())
		require.Equal(b, sluice.WorkerStats{Done: int64(n)}, w.Stats())
		require.LessOrEqual(b, most.Load(), int64(n*2/5))
		b.RequireClean()
	})
}

// A worker runs as many handlers as Concurrency says, and not one more: with 3, and with
// 8, for which tasks are claimed in two halves.
func TestWorker_RunsAsManyHandlersAsItMay(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		for _, runners := range []int{3, 8} {
			n := 3 * runners
			gate, begun := make(chan struct{}), make(chan string, n)
			w := &sluice.Worker{Queue: b.Q, Concurrency: runners, Handler: func(_ context.Context, e sluice.Entry) error {
				begun <- e.ID
				<-gate
				return nil
			}}
			tasks := make([]sluice.Task, n)
			for i := range tasks {
				tasks[i].ID = fmt.Sprint(i)
			}
			_, err := b.Q.EnqueueBatch(b.Context(), tasks)
			require.NoError(b, err)
			stop := systest.StartWorker(b.T, w)
			for range runners {
				<-begun
			}
			require.Equal(b, int64(runners), w.Stats().Running)
			require.Equal(b, int64(n-runners), b.Stats().Due, "claimed without a free runner")
			require.Empty(b, begun)
			gate <- struct{}{} // one runner is free: it gets a task while the others are at work
			<-begun
			close(gate)
			b.RequireDrained()
			require.NoError(b, stop())
			require.Equal(b, sluice.WorkerStats{Done: int64(n)}, w.Stats())
		}
	})
}

type refusal struct{}

func (refusal) Error() string { return "card refused" }

// broken is an error whose methods panic.
type broken struct{ text string }

func (e *broken) Error() string { return e.text } // panics on nil
func (e *broken) Unwrap() error { panic("no") }

func TestWorker_ErrorDecidesTheDisposition(t *testing.T) {
	long := strings.Repeat("x", 2000)
	for name, test := range map[string]struct {
		handler func() error
		backoff func(int, error) time.Duration
		dead    string // the reason; "" if the task is retried
	}{
		"error":            {handler: func() error { return errors.New("later") }},
		"permanent":        {handler: func() error { return sluice.Permanent(refusal{}) }, dead: "card refused"},
		"wrapped":          {handler: func() error { return fmt.Errorf("pay: %w", sluice.Permanent(refusal{})) }, dead: "pay: card refused"},
		"long reason":      {handler: func() error { return sluice.Permanent(errors.New(long)) }, dead: long[:512]},
		"panic":            {handler: func() error { panic("boom") }},
		"panic nil":        {handler: func() error { panic(nil) }},
		"goexit":           {handler: func() error { runtime.Goexit(); return nil }},
		"nil error":        {handler: func() error { var e *broken; return e }},
		"broken error":     {handler: func() error { return &broken{"x"} }},
		"backoff panics":   {handler: func() error { return refusal{} }, backoff: func(int, error) time.Duration { panic("boom") }},
		"backoff exits":    {handler: func() error { return refusal{} }, backoff: func(int, error) time.Duration { runtime.Goexit(); return 0 }},
		"backoff negative": {handler: func() error { return refusal{} }, backoff: systest.After(-time.Hour)},
		"backoff too long": {handler: func() error { return refusal{} }, backoff: systest.After(math.MaxInt64)},
	} {
		t.Run(name, func(t *testing.T) {
			systest.EachQueue(t, func(b systest.QueueTest) {
				log := &systest.Buffer{}
				w := &sluice.Worker{Queue: b.Q, Logger: systest.LogTo(log), Backoff: test.backoff,
					Handler: func(_ context.Context, e sluice.Entry) error {
						if e.ID == "good" {
							return nil
						}
						return test.handler()
					}}
				if w.Backoff == nil {
					w.Backoff = systest.After(time.Hour)
				}
				b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "bad", Payload: []byte("s3cret")})
				stop := systest.StartWorker(b.T, w)
				b.Eventually(func() bool { s := w.Stats(); return s.Retried+s.Buried > 0 })
				b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "good"})
				b.Eventually(func() bool { return w.Stats().Done == 1 })
				require.NoError(b, stop())
				require.NotContains(b, log.String(), "s3cret")
				if test.dead != "" {
					require.Equal(b, test.dead, b.Dead(1)[0].Reason)
					require.Equal(b, int64(1), w.Stats().Buried)
					return
				}
				require.Zero(b, w.Stats().Buried)
				e := b.Get("bad")
				require.Equal(b, "s3cret", string(e.Payload))
				require.Positive(b, e.Attempt)
				require.Equal(b, strings.HasPrefix(name, "panic"), strings.Contains(log.String(), "worker_test.go:"),
					"a panic's stack, and no other, is in the log: %s", log)
			}, sluice.WithMaxAttempts(-1))
		})
	}
}

// The error of the last attempt that is allowed buries the task, and is the reason.
func TestWorker_LastErrorIsTheReason(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("p")})
		var asked []int
		w := &sluice.Worker{Queue: b.Q, Concurrency: 1,
			Handler: func(_ context.Context, e sluice.Entry) error { return fmt.Errorf("attempt %d", e.Attempt) },
			Backoff: func(attempt int, err error) time.Duration {
				asked = append(asked, attempt)
				return 0
			}}
		stop := systest.StartWorker(b.T, w)
		b.Eventually(func() bool { return w.Stats().Buried == 1 })
		require.NoError(b, stop())
		require.Equal(b, sluice.WorkerStats{Retried: 2, Buried: 1}, w.Stats())
		require.Equal(b, []int{1, 2}, asked)
		letter := b.Dead(1)[0]
		require.Equal(b, "attempt 3", letter.Reason)
		require.Equal(b, 3, letter.Attempt)
		require.Equal(b, "p", string(letter.Payload))
	}, sluice.WithMaxAttempts(3))
}

func TestPermanent_WrapsAnError(t *testing.T) {
	t.Parallel()
	require.NoError(t, sluice.Permanent(nil))
	err := fmt.Errorf("pay: %w", sluice.Permanent(refusal{}))
	require.ErrorIs(t, err, refusal{})
	var r refusal
	require.ErrorAs(t, err, &r)
	require.EqualError(t, err, "pay: card refused")
}

// Run returns ErrInvalid for invalid fields at once, which it names, and sends nothing.
func TestWorker_InvalidFieldsSendNothing(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		q := systest.NewQueue(t, rdb)
		handler := func(context.Context, sluice.Entry) error { return nil }
		for text, w := range map[string]*sluice.Worker{
			"Worker.Queue is nil": {Handler: handler},
			"Queue is nil":        {},
			"Worker: invalid argument: Queue not made by NewQueue": {Queue: &sluice.Queue{}, Handler: handler},
			"Worker: invalid argument: Handler is nil":             {Queue: q},
			"Worker.Concurrency must":                              {Queue: q, Handler: handler, Concurrency: -1},
			"Lease of -1ns: must":                                  {Queue: q, Handler: handler, Lease: -1},
			"Lease of 999.999µs: must be 1ms":                      {Queue: q, Handler: handler, Lease: time.Millisecond - 1},
			"854775807s: must be 1ms to 100 years":                 {Queue: q, Handler: handler, Lease: math.MaxInt64},
			"Timeout of 2562047h47m16.854775807s: must":            {Queue: q, Handler: handler, Timeout: math.MaxInt64},
			"Worker.Grace of -1ns: must be 0s":                     {Queue: q, Handler: handler, Grace: -1},
			"Worker.Grace of 2562047h47m16.854775807s: must be":    {Queue: q, Handler: handler, Grace: math.MaxInt64},
		} {
			err := w.Run(t.Context())
			require.ErrorIs(t, err, sluice.ErrInvalid, text)
			require.ErrorContains(t, err, text)
		}
		w := &sluice.Worker{Queue: q, Handler: handler}
		require.NoError(t, w.Run(systest.Ended()))
		require.NoError(t, w.Run(systest.Ended()), "it may run again")
		require.Zero(t, faults.Bytes(), "something was sent")
	})
}

func TestWorker_RunsOnceAtATime(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		w := &sluice.Worker{Queue: b.Q, Handler: func(context.Context, sluice.Entry) error { return nil }}
		stop := systest.StartWorker(b.T, w)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		b.Eventually(func() bool { return w.Stats().Done == 1 })
		require.ErrorIs(b, w.Run(b.Context()), sluice.ErrInvalid)
		require.NoError(b, stop())
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		stop = systest.StartWorker(b.T, w)
		b.Eventually(func() bool { return w.Stats().Done == 2 })
		require.NoError(b, stop())
	})
}

// A worker that is stopped at any moment loses no task, and no attempt of a task that was
// not begun.
func TestWorker_StopUnderLoadLosesNothing(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		n := b.Sized(600)
		tasks := make([]sluice.Task, n)
		for i := range tasks {
			tasks[i].ID = fmt.Sprint(i)
		}
		_, err := b.Q.EnqueueBatch(b.Context(), tasks)
		require.NoError(b, err)
		var mu sync.Mutex
		begun := map[string]int{}
		total := sluice.WorkerStats{}
		for s := b.Stats(); s.Due+s.Scheduled+s.Leased > 0; s = b.Stats() {
			w := &sluice.Worker{Queue: b.Q, Concurrency: 20, Handler: func(ctx context.Context, e sluice.Entry) error {
				mu.Lock()
				begun[e.ID]++
				if begun[e.ID] != e.Attempt {
					panic("an attempt that was not begun was counted")
				}
				mu.Unlock()
				time.Sleep(rand.N(3 * time.Millisecond)) // the work, in the midst of which the end comes
				return nil
			}}
			stop := systest.StartWorker(b.T, w)
			some := rand.N(int64(n / 10)) // so that a busy machine gets on, too
			b.Eventually(func() bool { s := b.Stats(); return w.Stats().Done >= some || s.Due+s.Scheduled+s.Leased == 0 })
			require.NoError(b, stop(), "it did not come to rest within Grace")
			s := w.Stats()
			total.Done += s.Done
			require.Zero(b, s.Retried+s.Buried+s.Lost+s.Running)
		}
		require.Equal(b, int64(n), total.Done)
		for id, times := range begun {
			require.Equal(b, 1, times, "task %s", id)
		}
		b.RequireClean()
	})
}

// An ID is enqueued again and again while handlers work on it. No two handlers work on
// it at once, and a handler always sees the last payload.
func TestWorker_DeferredVersionWaitsForTheHandler(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		rounds := b.Sized(100) * systest.Scale()
		var busy atomic.Int64
		var mu sync.Mutex
		last := map[string]string{}
		handler := func(ctx context.Context, e sluice.Entry) error {
			if busy.Add(1) != 1 {
				panic("twice at once")
			}
			defer busy.Add(-1)
			_ = b.RDB.Ping(ctx).Err() // the work
			mu.Lock()
			defer mu.Unlock()
			last[e.ID] = string(e.Payload)
			if rand.N(4) == 0 {
				return errors.New("again")
			}
			return nil
		}
		var stops []func() error
		var workers []*sluice.Worker
		for range 2 {
			w := &sluice.Worker{Queue: b.Q, Concurrency: 4, Handler: handler, Backoff: systest.After(0)}
			workers, stops = append(workers, w), append(stops, systest.StartWorker(b.T, w))
		}
		for round := range rounds {
			version := ""
			for v := range 1 + rand.N(4) {
				version = fmt.Sprintf("%d.%d", round, v)
				_, err := b.Q.Enqueue(b.Context(), sluice.Task{ID: "a", Payload: []byte(version), Delay: rand.N(time.Millisecond)})
				require.NoError(b, err)
				time.Sleep(rand.N(time.Millisecond)) // so that it falls at any time of the handler's
			}
			b.RequireDrained()
			mu.Lock()
			require.Equal(b, version, last["a"], "the last version was not processed")
			mu.Unlock()
		}
		for i, stop := range stops {
			require.NoError(b, stop())
			require.Zero(b, workers[i].Stats().Lost+workers[i].Stats().Buried, "twice at once")
		}
	}, sluice.WithMaxAttempts(-1))
}

// A notification wakes an idle worker when a task is due before all others: its poll
// interval is too long to be what woke it. TestWorker_BeginsANewHeadWithoutDelay says
// how soon, on the fake clock.
func TestWorker_TakesANewHeadAtOnce(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "later", Delay: time.Hour})
		begun := make(chan string, 1)
		systest.StartWorker(b.T, &sluice.Worker{Queue: b.Q, Handler: func(_ context.Context, e sluice.Entry) error {
			begun <- e.ID
			return nil
		}})
		for i := range 30 {
			time.Sleep(rand.N(5 * time.Millisecond)) // at no fixed point of the worker's loop
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: fmt.Sprint(i)})
			select {
			case id := <-begun:
				require.Equal(b, fmt.Sprint(i), id)
			case <-time.After(30 * time.Second):
				require.Fail(b, "no notification has woken the worker")
			}
		}
	}, sluice.WithPollInterval(time.Hour))
}

// Every number and duration of a Worker at its extremes: it handles a task, or Run is
// ErrInvalid at once.
func TestWorker_ExtremesWorkOrAreInvalid(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	extremes := map[string]func(w *sluice.Worker, n int64) (valid bool){
		"Concurrency": func(w *sluice.Worker, n int64) bool { w.Concurrency = int(n); return n >= 0 && n <= 1_000_000 },
		"Lease": func(w *sluice.Worker, n int64) bool {
			w.Lease = time.Duration(n)
			return n == 0 || n >= int64(time.Millisecond) && n <= int64(century)
		},
		"Timeout": func(w *sluice.Worker, n int64) bool {
			w.Timeout = time.Duration(n)
			return n <= int64(century)
		},
		"Grace":   func(w *sluice.Worker, n int64) bool { w.Grace = time.Duration(n); return n >= 0 && n <= int64(century) },
		"Backoff": func(w *sluice.Worker, n int64) bool { w.Backoff = systest.After(time.Duration(n)); return true },
	}
	systest.EachQueue(t, func(b systest.QueueTest) {
		for field, set := range extremes {
			for _, n := range []int64{math.MinInt64, -1, 0, 1, 1_000_000, 1_000_001, int64(century), int64(century) + 1, math.MaxInt64} {
				b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
				w := &sluice.Worker{Queue: b.Q, Handler: func(context.Context, sluice.Entry) error {
					if field == "Backoff" {
						return errors.New("again")
					}
					return nil
				}}
				valid := set(w, n)
				if !valid {
					require.ErrorIs(b, w.Run(systest.Ended()), sluice.ErrInvalid, "%s %d", field, n)
				} else {
					stop := systest.StartWorker(b.T, w)
					b.Eventually(func() bool { s := w.Stats(); return s.Done+s.Retried+s.Lost+s.Released > 0 })
					require.NoError(b, stop())
				}
				require.NoError(b, b.Q.Purge(b.Context()))
			}
		}
	}, sluice.WithMaxAttempts(-1))
}

// DefaultBackoff bears any attempt.
func TestDefaultBackoff_IsWithinItsBounds(t *testing.T) {
	t.Parallel()
	for attempt, most := range map[int]time.Duration{
		math.MinInt: time.Second, -1: time.Second, 0: time.Second, 1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second,
		12: 2048 * time.Second, 13: time.Hour, 64: time.Hour, math.MaxInt: time.Hour,
	} {
		longest := time.Duration(0)
		for range 1000 {
			d := sluice.DefaultBackoff(attempt, nil)
			require.GreaterOrEqual(t, d, time.Duration(0))
			longest = max(longest, d)
		}
		require.LessOrEqual(t, longest, most, attempt)
		require.Greater(t, longest, most/2, "attempt %d", attempt)
	}
}

// TestBackoffUpTo_IsTheDefaultWithAnotherBound: 0 is the default's, negative none.
func TestBackoffUpTo_IsTheDefaultWithAnotherBound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		bound   time.Duration
		attempt int
		most    time.Duration
	}{
		{time.Minute, 1, time.Second}, {time.Minute, 6, 32 * time.Second}, {time.Minute, 7, time.Minute}, {time.Minute, math.MaxInt, time.Minute},
		{time.Millisecond, 1, time.Millisecond}, {24 * time.Hour, 13, 4096 * time.Second}, {0, 64, time.Hour}, {-1, 14, 8192 * time.Second},
		{-1, math.MaxInt, 1 << 20 * time.Second},
	} {
		next, longest := sluice.BackoffUpTo(c.bound), time.Duration(0)
		for range 1000 {
			d := next(c.attempt, nil)
			require.GreaterOrEqual(t, d, time.Duration(0))
			longest = max(longest, d)
		}
		require.LessOrEqual(t, longest, c.most, "%+v", c)
		require.Greater(t, longest, c.most/2, "%+v", c)
	}
}

func TestIsPermanent_SeesThroughWrapping(t *testing.T) {
	t.Parallel()
	require.True(t, sluice.IsPermanent(fmt.Errorf("pay: %w", sluice.Permanent(refusal{}))))
	require.True(t, sluice.IsPermanent(errors.Join(refusal{}, sluice.Permanent(refusal{}))))
	require.False(t, sluice.IsPermanent(refusal{}))
	require.False(t, sluice.IsPermanent(nil))
}
