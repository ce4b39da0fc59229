package sluice_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// start runs a worker until stop is called, or the test ends. stop returns what Run
// did.
func start(t *testing.T, w *sluice.Worker) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- w.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-result })
	t.Cleanup(func() { _ = stop() })
	return stop
}

// diary is a logger's output, to be read while it is written.
type diary struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (d *diary) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text.Write(p)
}

func (d *diary) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text.String()
}

func (d *diary) logger() *slog.Logger { return slog.New(slog.NewTextHandler(d, nil)) }

// drained waits until nothing is left in the queue but dead letters.
func (b bundle) drained() {
	b.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		if s := b.stats(); s.Due+s.Scheduled == 0 {
			return
		}
		require.True(b, time.Now().Before(deadline), "tasks are left: %+v", b.stats())
	}
}

func at(d time.Duration) func(int, error) time.Duration {
	return func(int, error) time.Duration { return d }
}

func TestWorkerDoesAll(t *testing.T) {
	eachQueue(t, func(b bundle) {
		const n = 1500 // more than a chunk
		tasks := make([]sluice.Task, n)
		for i := range tasks {
			tasks[i] = sluice.Task{ID: fmt.Sprint(i), Payload: []byte("p" + fmt.Sprint(i)), Delay: rand.N(200 * time.Millisecond)}
		}
		_, err := b.q.EnqueueBatch(b.Context(), tasks)
		require.NoError(b, err)
		var running, most atomic.Int64
		var times sync.Map
		w := &sluice.Worker{Queue: b.q, Concurrency: 600, Handler: func(_ context.Context, e sluice.Entry) error {
			if now := running.Add(1); now > most.Load() {
				most.Store(now)
			}
			defer running.Add(-1)
			if _, again := times.LoadOrStore(e.ID, true); again || "p"+e.ID != string(e.Payload) || e.Attempt != 1 {
				return errors.New("not as it was enqueued")
			}
			return nil
		}}
		stop := start(b.T, w)
		b.drained()
		require.NoError(b, stop())
		require.Equal(b, sluice.WorkerStats{Done: n}, w.Stats())
		require.LessOrEqual(b, most.Load(), int64(600))
		b.requireClean()
	})
}

// TestWorkerConcurrency: no more than it says, and all of them; with 3, and with
// 8, which are claimed in two halves.
func TestWorkerConcurrency(t *testing.T) {
	eachQueue(t, func(b bundle) {
		for _, hands := range []int{3, 8} {
			n := 3 * hands
			gate, begun := make(chan struct{}), make(chan string, n)
			w := &sluice.Worker{Queue: b.q, Concurrency: hands, Handler: func(_ context.Context, e sluice.Entry) error {
				begun <- e.ID
				<-gate
				return nil
			}}
			tasks := make([]sluice.Task, n)
			for i := range tasks {
				tasks[i].ID = fmt.Sprint(i)
			}
			_, err := b.q.EnqueueBatch(b.Context(), tasks)
			require.NoError(b, err)
			stop := start(b.T, w)
			for range hands {
				<-begun
			}
			require.Equal(b, int64(hands), w.Stats().Running)
			require.Equal(b, int64(n-hands), b.stats().Due, "claimed without a free hand")
			require.Empty(b, begun)
			gate <- struct{}{} // one hand is free: it gets a task although the others are at work
			<-begun
			close(gate)
			b.drained()
			require.NoError(b, stop())
			require.Equal(b, sluice.WorkerStats{Done: int64(n)}, w.Stats())
		}
	})
}

type refusal struct{}

func (refusal) Error() string { return "card refused" }

// broken is an error that cannot be asked anything.
type broken struct{ text string }

func (e *broken) Error() string { return e.text } // panics on nil
func (e *broken) Unwrap() error { panic("no") }

func TestWorkerVerdicts(t *testing.T) {
	long := strings.Repeat("x", 2000)
	for name, test := range map[string]struct {
		handler func() error
		backoff func(int, error) time.Duration
		dead    string // the reason; "" if it is retried for ever
	}{
		"error":            {handler: func() error { return errors.New("later") }},
		"permanent":        {handler: func() error { return sluice.Permanent(refusal{}) }, dead: "card refused"},
		"wrapped":          {handler: func() error { return fmt.Errorf("pay: %w", sluice.Permanent(refusal{})) }, dead: "pay: card refused"},
		"long reason":      {handler: func() error { return sluice.Permanent(errors.New(long)) }, dead: long[:512]},
		"panic":            {handler: func() error { panic("boom") }},
		"panic nil":        {handler: func() error { panic(nil) }}, //nolint:govet // as handlers do
		"goexit":           {handler: func() error { runtime.Goexit(); return nil }},
		"nil error":        {handler: func() error { var e *broken; return e }},
		"broken error":     {handler: func() error { return &broken{"x"} }},
		"backoff panics":   {handler: func() error { return refusal{} }, backoff: func(int, error) time.Duration { panic("boom") }},
		"backoff exits":    {handler: func() error { return refusal{} }, backoff: func(int, error) time.Duration { runtime.Goexit(); return 0 }},
		"backoff negative": {handler: func() error { return refusal{} }, backoff: at(-time.Hour)},
		"backoff too long": {handler: func() error { return refusal{} }, backoff: at(math.MaxInt64)},
	} {
		t.Run(name, func(t *testing.T) {
			eachQueue(t, func(b bundle) {
				log := &diary{}
				w := &sluice.Worker{Queue: b.q, Logger: log.logger(), Backoff: test.backoff,
					Handler: func(_ context.Context, e sluice.Entry) error {
						if e.ID == "good" {
							return nil
						}
						return test.handler()
					}}
				if w.Backoff == nil {
					w.Backoff = at(time.Hour)
				}
				b.enqueue(sluice.Added, sluice.Task{ID: "bad", Payload: []byte("s3cret")})
				stop := start(b.T, w)
				b.eventually(func() bool { s := w.Stats(); return s.Retried+s.Buried > 0 })
				b.enqueue(sluice.Added, sluice.Task{ID: "good"})
				b.eventually(func() bool { return w.Stats().Done == 1 })
				require.NoError(b, stop())
				require.NotContains(b, log.String(), "s3cret")
				if test.dead != "" {
					require.Equal(b, test.dead, b.dead(1)[0].Reason)
					require.Equal(b, int64(1), w.Stats().Buried)
					return
				}
				require.Zero(b, w.Stats().Buried)
				e := b.get("bad")
				require.Equal(b, "s3cret", string(e.Payload))
				require.Positive(b, e.Attempt)
				require.Equal(b, strings.Contains(name, "panic"+"") && !strings.Contains(name, "backoff"), strings.Contains(log.String(), "runner.go"),
					"a panic's stack is in the log, %s", log)
			}, sluice.WithMaxAttempts(0))
		})
	}
}

// TestAttemptsUsedUp: the error of the last attempt buries the task, and is why.
func TestAttemptsUsedUp(t *testing.T) {
	eachQueue(t, func(b bundle) {
		b.enqueue(sluice.Added, sluice.Task{ID: "a", Payload: []byte("p")})
		var asked []int
		w := &sluice.Worker{Queue: b.q, Concurrency: 1,
			Handler: func(_ context.Context, e sluice.Entry) error { return fmt.Errorf("attempt %d", e.Attempt) },
			Backoff: func(attempt int, err error) time.Duration {
				asked = append(asked, attempt)
				return 0
			}}
		stop := start(b.T, w)
		b.eventually(func() bool { return w.Stats().Buried == 1 })
		require.NoError(b, stop())
		require.Equal(b, sluice.WorkerStats{Retried: 2, Buried: 1}, w.Stats())
		require.Equal(b, []int{1, 2}, asked)
		letter := b.dead(1)[0]
		require.Equal(b, "attempt 3", letter.Reason)
		require.Equal(b, 3, letter.Attempt)
		require.Equal(b, "p", string(letter.Payload))
	}, sluice.WithMaxAttempts(3))
}

func TestPermanent(t *testing.T) {
	t.Parallel()
	require.NoError(t, sluice.Permanent(nil))
	err := fmt.Errorf("pay: %w", sluice.Permanent(refusal{}))
	require.ErrorIs(t, err, refusal{})
	var r refusal
	require.ErrorAs(t, err, &r)
	require.EqualError(t, err, "pay: card refused")
}

// TestWorkerInvalid: an error at once, and nothing is sent.
func TestWorkerInvalid(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		q := newQueue(t, rdb)
		handler := func(context.Context, sluice.Entry) error { return nil }
		for name, w := range map[string]*sluice.Worker{
			"nil":              nil,
			"zero":             {},
			"no queue":         {Handler: handler},
			"zero queue":       {Queue: &sluice.Queue{}, Handler: handler},
			"no handler":       {Queue: q},
			"concurrency":      {Queue: q, Handler: handler, Concurrency: -1},
			"lease":            {Queue: q, Handler: handler, Lease: -1},
			"short lease":      {Queue: q, Handler: handler, Lease: time.Millisecond - 1},
			"long lease":       {Queue: q, Handler: handler, Lease: math.MaxInt64},
			"negative timeout": {Queue: q, Handler: handler, Timeout: -1},
			"long timeout":     {Queue: q, Handler: handler, Timeout: math.MaxInt64},
			"negative grace":   {Queue: q, Handler: handler, Grace: -1},
			"long grace":       {Queue: q, Handler: handler, Grace: math.MaxInt64},
		} {
			require.ErrorIs(t, w.Run(t.Context()), sluice.ErrInvalid, name)
		}
		w := &sluice.Worker{Queue: q, Handler: handler}
		require.ErrorIs(t, w.Run(nilContext), sluice.ErrInvalid)
		require.NoError(t, w.Run(ended()))
		require.NoError(t, w.Run(ended()), "it may run again")
		require.Zero(t, faults.Bytes(), "something was sent")
	})
}

func TestWorkerRunsOnceAtATime(t *testing.T) {
	eachQueue(t, func(b bundle) {
		w := &sluice.Worker{Queue: b.q, Handler: func(context.Context, sluice.Entry) error { return nil }}
		stop := start(b.T, w)
		b.enqueue(sluice.Added, sluice.Task{ID: "a"})
		b.eventually(func() bool { return w.Stats().Done == 1 })
		require.ErrorIs(b, w.Run(b.Context()), sluice.ErrInvalid)
		require.NoError(b, stop())
		b.enqueue(sluice.Added, sluice.Task{ID: "a"})
		stop = start(b.T, w)
		b.eventually(func() bool { return w.Stats().Done == 2 })
		require.NoError(b, stop())
	})
}

// TestStopReleasesTheUnstarted: the worker is told to stop while a claim is under
// way. What it brings goes back, its attempt not counted.
func TestStopReleasesTheUnstarted(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		name := redistest.Name(t)
		q, err := sluice.NewQueue(rdb, name)
		require.NoError(t, err)
		clean, err := sluice.NewQueue(s.Client(t), name)
		require.NoError(t, err)
		for i := range 5 {
			_, err := clean.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(i), Payload: []byte("p")})
			require.NoError(t, err)
		}
		w := &sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error { return errors.New("begun") }}
		require.NoError(t, rdb.Ping(t.Context()).Err())
		faults.Delay(150 * time.Millisecond)
		before := faults.Scripts()
		stop := start(t, w)
		for faults.Scripts() == before {
			time.Sleep(time.Millisecond) // until the claim is on its way
		}
		require.NoError(t, stop())
		require.Equal(t, sluice.WorkerStats{Released: 5}, w.Stats())
		faults.Delay(0)
		es, err := clean.Claim(t.Context(), 10, time.Minute)
		require.NoError(t, err)
		require.Len(t, es, 5)
		for _, e := range es {
			require.Equal(t, 1, e.Attempt, "an attempt was burnt")
		}
	})
}

// TestStopUnderLoad: nothing is lost or burnt, however the end of ctx falls.
func TestStopUnderLoad(t *testing.T) {
	eachQueue(t, func(b bundle) {
		const n = 600
		tasks := make([]sluice.Task, n)
		for i := range tasks {
			tasks[i].ID = fmt.Sprint(i)
		}
		_, err := b.q.EnqueueBatch(b.Context(), tasks)
		require.NoError(b, err)
		var mu sync.Mutex
		begun := map[string]int{}
		total := sluice.WorkerStats{}
		for b.stats().Due+b.stats().Scheduled > 0 {
			w := &sluice.Worker{Queue: b.q, Concurrency: 20, Handler: func(ctx context.Context, e sluice.Entry) error {
				mu.Lock()
				begun[e.ID]++
				if begun[e.ID] != e.Attempt {
					panic("an attempt that was not begun was counted")
				}
				mu.Unlock()
				time.Sleep(rand.N(3 * time.Millisecond)) // the work
				return nil
			}}
			stop := start(b.T, w)
			time.Sleep(rand.N(15 * time.Millisecond)) // the end may come at any time
			began := time.Now()
			require.NoError(b, stop())
			require.Less(b, time.Since(began), 5*time.Second)
			s := w.Stats()
			total.Done += s.Done
			require.Zero(b, s.Retried+s.Buried+s.Lost+s.Running)
		}
		require.Equal(b, int64(n), total.Done)
		for id, times := range begun {
			require.Equal(b, 1, times, "task %s", id)
		}
		b.requireClean()
	})
}

// TestDeferredWhileHandled: an ID is enqueued again and again while it is worked on.
// It never is by two handlers at once, and the last payload is always seen.
func TestDeferredWhileHandled(t *testing.T) {
	rounds := 100 * scale()
	eachQueue(t, func(b bundle) {
		var busy atomic.Int64
		var mu sync.Mutex
		last := map[string]string{}
		handler := func(_ context.Context, e sluice.Entry) error {
			if busy.Add(1) != 1 {
				panic("twice at once")
			}
			defer busy.Add(-1)
			time.Sleep(rand.N(300 * time.Microsecond)) // the work
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
			w := &sluice.Worker{Queue: b.q, Concurrency: 4, Handler: handler, Backoff: at(0)}
			workers, stops = append(workers, w), append(stops, start(b.T, w))
		}
		for round := range rounds {
			version := ""
			for v := range 1 + rand.N(4) {
				version = fmt.Sprintf("%d.%d", round, v)
				_, err := b.q.Enqueue(b.Context(), sluice.Task{ID: "a", Payload: []byte(version), Delay: rand.N(time.Millisecond)})
				require.NoError(b, err)
				time.Sleep(rand.N(time.Millisecond)) // so that it falls at any time of the handler's
			}
			b.drained()
			mu.Lock()
			require.Equal(b, version, last["a"], "the last version was not processed")
			mu.Unlock()
		}
		for i, stop := range stops {
			require.NoError(b, stop())
			require.Zero(b, workers[i].Stats().Lost+workers[i].Stats().Buried, "twice at once")
		}
	}, sluice.WithMaxAttempts(0))
}

// TestNewHeadIsTakenAtOnce: a task that is due now, though the next was to come in
// an hour and the worker looks once a minute.
func TestNewHeadIsTakenAtOnce(t *testing.T) {
	// Not parallel: it measures.
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		q := newQueue(t, s.Client(t), sluice.WithPollInterval(time.Minute))
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: "later", Delay: time.Hour})
		require.NoError(t, err)
		begun := make(chan time.Time)
		start(t, &sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error {
			begun <- time.Now()
			return nil
		}})
		time.Sleep(100 * time.Millisecond) // until it is idle
		var late []time.Duration
		for i := range 50 {
			enqueued := time.Now()
			_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(i)})
			require.NoError(t, err)
			late = append(late, (<-begun).Sub(enqueued))
			time.Sleep(rand.N(5 * time.Millisecond)) // at no fixed point of the worker's loop
		}
		slices.Sort(late)
		t.Logf("p50 %v, max %v", late[25], late[49])
		require.Less(t, late[25], 10*time.Millisecond)
	})
}

// TestWorkerOnAFullServer: what is there is finished, retried, buried.
func TestWorkerOnAFullServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	q := newQueue(t, rdb)
	for i := range 30 {
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(i), Payload: []byte("p")})
		require.NoError(t, err)
	}
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	w := &sluice.Worker{Queue: q, Concurrency: 4, Backoff: at(0), Lease: 300 * time.Millisecond,
		Handler: func(_ context.Context, e sluice.Entry) error {
			switch {
			case e.ID > "2" && e.ID < "20":
				return sluice.Permanent(errors.New("no"))
			case e.Attempt == 1:
				return errors.New("again")
			case e.ID == "5":
				time.Sleep(time.Second) // longer than the lease: it has to be extended
			}
			return nil
		}}
	stop := start(t, w)
	b := bundle{T: t, q: q, rdb: rdb}
	b.drained()
	require.NoError(t, stop())
	stats := w.Stats()
	require.Equal(t, int64(30), stats.Done+stats.Buried)
	require.Equal(t, stats.Done, stats.Retried)
	require.Zero(t, stats.Lost)
	require.Equal(t, stats.Buried, b.stats().Dead)
}

// TestPoisonDoesNotStopAWorker: what is not the library's is set aside, also when
// it becomes so while it is worked on.
func TestPoisonDoesNotStopAWorker(t *testing.T) {
	eachQueue(t, func(b bundle) {
		ctx, tasks := b.Context(), "{"+b.key+"}:tasks"
		require.NoError(b, b.rdb.ZAdd(ctx, b.key, redis.Z{Score: 1, Member: "poison"}, redis.Z{Score: 1, Member: ""}).Err())
		require.NoError(b, b.rdb.HSet(ctx, tasks, "poison", "garbage").Err())
		require.NoError(b, b.rdb.Do(ctx, "ZADD", b.key, "-inf", "-inf").Err())
		for _, id := range []string{"retried", "finished", "good"} {
			b.enqueue(sluice.Added, sluice.Task{ID: id})
		}
		w := &sluice.Worker{Queue: b.q, Backoff: at(0), Handler: func(_ context.Context, e sluice.Entry) error {
			if e.ID != "good" {
				require.NoError(b, b.rdb.HSet(ctx, tasks, e.ID, "garbage").Err())
			}
			if e.ID == "retried" {
				return errors.New("again")
			}
			return nil
		}}
		stop := start(b.T, w)
		b.drained()
		require.NoError(b, stop())
		require.Equal(b, sluice.WorkerStats{Done: 2, Buried: 1}, w.Stats())
		require.Len(b, b.dead(10), 4)
	})
}
