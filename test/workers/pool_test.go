package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
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

// runPool starts a pool. What it returns ends it, and returns what Run has returned; so does the
// end of the test.
func runPool(t *testing.T, p *sluice.Pool) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	result := make(chan error, 1)
	go func() { result <- p.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-result })
	t.Cleanup(func() { _ = stop() })
	return stop
}

// poolQueues makes queues of a test's own, each with n tasks that are due.
func poolQueues(t *testing.T, rdb redis.UniversalClient, queues, n int) []*sluice.Queue {
	t.Helper()
	made := make([]*sluice.Queue, queues)
	for i := range made {
		made[i] = systest.NewQueueTest(t, rdb, fmt.Sprint(redistest.Name(t), "-", i)).Q
		_, err := made[i].EnqueueBatch(t.Context(), systest.DueTasks(n))
		require.NoError(t, err)
	}
	return made
}

// TestPool_EachQueueHasItsShare, and there are never more handlers than there may be, nor more
// leased tasks.
func TestPool_EachQueueHasItsShare(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		// The first go while connections are made: until then a queue may have had none.
		const places, first, counting, all = 10, 100, 160, 520
		weights := []int{6, 3, 1, 6, 3, 1}
		queues := poolQueues(t, s.Client(t), len(weights), all)
		var running, most atomic.Int64
		var order []int
		begun, from := map[int]bool{}, 0
		var mu sync.Mutex
		var free []time.Time // since when places are, the first is the next that is used
		var idle, longest time.Duration
		p := &sluice.Pool{Concurrency: places}
		enough, counted := make(chan struct{}), make(chan struct{})
		for i, weight := range weights {
			p.Workers = append(p.Workers, &sluice.Worker{Queue: queues[i], Weight: weight, Handler: func(context.Context, sluice.Entry) error {
				n := running.Add(1)
				mu.Lock()
				most.Store(max(most.Load(), n))
				order, begun[i] = append(order, i), true
				if from == 0 && len(order) >= first && len(begun) == len(weights) {
					from = len(order)
				}
				if from > 0 && len(order) == from+counting {
					close(enough)
				}
				if len(free) > 0 {
					longest, idle, free = max(longest, time.Since(free[0])), idle+time.Since(free[0]), free[1:]
				}
				mu.Unlock()
				time.Sleep(30 * time.Millisecond)
				select {
				case <-enough:
					<-counted // else a task ends, and another queue's begins, between two looks
				default:
				}
				mu.Lock()
				defer mu.Unlock()
				running.Add(-1)
				free = append(free, time.Now())
				return nil
			}})
		}
		stop := runPool(t, p)
		<-enough
		leased := 0
		for _, q := range queues {
			stats, err := q.Stats(t.Context())
			require.NoError(t, err)
			leased += int(stats.Leased)
		}
		close(counted)
		require.LessOrEqual(t, leased, 2*places, "those that run, and those of which the server does not know yet that they are done")
		require.NoError(t, stop())
		require.LessOrEqual(t, most.Load(), int64(places))
		counts, total := make([]int, len(weights)), make([]int, len(weights))
		for k, i := range order[:from+counting] {
			total[i]++
			if k >= from {
				counts[i]++
			}
		}
		of := func(weight int) int {
			return counts[slices.Index(weights, weight)] + counts[slices.Index(weights, weight)+3]
		}
		require.Greater(t, of(6), of(3), "%v", counts) // how exactly, the run loop's tests say
		require.Greater(t, of(3), of(1), "%v", counts)
		for i, n := range total { // one may have had more than its share at first, and less behind that
			require.Greater(t, 4*n, (from+counting)*weights[i]/20, "%v", total)
		}
		t.Logf("%v tasks; a place was free for %v, at most for %v", counts, (idle / time.Duration(len(order))).Round(time.Microsecond), longest.Round(time.Microsecond))
		for i, w := range p.Workers {
			done := int(w.Stats().Done)
			require.GreaterOrEqual(t, done, counts[i], "each counts its own queue's tasks")
			stats, err := queues[i].Stats(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, all-done, stats.Due+stats.Leased)
		}
	})
}

// TestPool_SetConcurrency of the pool and of a worker, up and down, while they run.
func TestPool_SetConcurrency(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		queues := poolQueues(t, rdb, 2, 300)
		var running [2]atomic.Int64
		p := &sluice.Pool{Concurrency: 4}
		for i, q := range queues {
			p.Workers = append(p.Workers, &sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error {
				running[i].Add(1)
				defer running[i].Add(-1)
				time.Sleep(time.Second)
				return nil
			}})
		}
		invalid := func(err error) {
			t.Helper()
			require.ErrorIs(t, err, sluice.ErrInvalid)
		}
		invalid(p.SetConcurrency(4))
		invalid(p.Workers[0].SetConcurrency(4))
		stop := runPool(t, p)
		requireRunning := func(of0, of1 int64) {
			t.Helper()
			time.Sleep(2 * time.Second)
			const looks = 200
			var sum, most [3]int64
			for range looks { // all return at the same time, and others begin a moment later
				time.Sleep(17 * time.Millisecond)
				now := [3]int64{running[0].Load(), running[1].Load()}
				now[2] = now[0] + now[1]
				for i, n := range now {
					sum[i] += n
					most[i] = max(most[i], n)
				}
			}
			require.Equal(t, of0+of1, most[2])
			require.InDelta(t, of0, float64(sum[0])/looks, max(float64(of0)/4, 1))
			require.InDelta(t, of1, float64(sum[1])/looks, max(float64(of1)/4, 1))
		}
		requireRunning(2, 2)
		require.NoError(t, p.SetConcurrency(20))
		requireRunning(10, 10)
		require.NoError(t, p.Workers[0].SetConcurrency(3))
		requireRunning(3, 17)
		require.NoError(t, p.SetConcurrency(1))
		time.Sleep(2 * time.Second)
		for range 100 {
			time.Sleep(17 * time.Millisecond)
			require.LessOrEqual(t, running[0].Load()+running[1].Load(), int64(1))
		}
		require.NoError(t, p.SetConcurrency(6))
		requireRunning(3, 3)
		invalid(p.SetConcurrency(0))
		invalid(p.SetConcurrency(-1))
		invalid(p.SetConcurrency(1_000_001))
		invalid(p.Workers[0].SetConcurrency(0))
		require.NoError(t, stop())
		invalid(p.SetConcurrency(4))

		w := &sluice.Worker{Queue: queues[0], Concurrency: 2, Handler: p.Workers[0].Handler}
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error)
		go func() { result <- w.Run(ctx) }()
		time.Sleep(1500 * time.Millisecond)
		require.EqualValues(t, 2, running[0].Load())
		require.NoError(t, w.SetConcurrency(9))
		requireRunning(9, 0)
		require.NoError(t, w.SetConcurrency(1))
		requireRunning(1, 0)
		cancel()
		require.NoError(t, <-result)
		invalid(w.SetConcurrency(4))
		time.Sleep(time.Minute)
	})
}

// TestPool_BadFields are refused, and nothing is sent. The error says which worker and which field.
func TestPool_BadFields(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { require.NoError(t, rdb.Close()) }()
	q, err := sluice.NewQueue(rdb, "q")
	require.NoError(t, err)
	same, err := sluice.NewQueue(rdb, "q")
	require.NoError(t, err)
	handler := func(context.Context, sluice.Entry) error { return nil }
	worker := func(change func(*sluice.Worker)) *sluice.Worker {
		w := &sluice.Worker{Queue: q, Handler: handler}
		change(w)
		return w
	}
	fine := worker(func(*sluice.Worker) {})
	for text, p := range map[string]*sluice.Pool{
		"without Workers":                                     {},
		"Pool.Workers[1] is nil":                              {Workers: []*sluice.Worker{fine, nil}},
		"Pool.Workers[1].Grace: set Pool.Grace instead":       {Workers: []*sluice.Worker{fine, worker(func(w *sluice.Worker) { w.Grace = time.Second })}},
		"Pool.Workers[0].Logger: set Pool.Logger instead":     {Workers: []*sluice.Worker{worker(func(w *sluice.Worker) { w.Logger = slog.Default() })}},
		"Pool.Workers[0].Queue is nil":                        {Workers: []*sluice.Worker{worker(func(w *sluice.Worker) { w.Queue = nil })}},
		"Pool.Workers[1]: invalid argument: Handler is nil":   {Workers: []*sluice.Worker{fine, worker(func(w *sluice.Worker) { w.Handler = nil })}},
		"Pool.Workers[0]: invalid argument: Weight must":      {Workers: []*sluice.Worker{worker(func(w *sluice.Worker) { w.Weight = -1 })}},
		"Weight must be 0 to 1000000":                         {Workers: []*sluice.Worker{worker(func(w *sluice.Worker) { w.Weight = 1_000_001 })}},
		"invalid argument: Pool.Concurrency must":             {Workers: []*sluice.Worker{fine}, Concurrency: -1},
		"Pool.Workers[0]: invalid argument: Concurrency must": {Workers: []*sluice.Worker{worker(func(w *sluice.Worker) { w.Concurrency = -1 })}},
		"Pool.Grace of -1ns: must be 0s to 100 years":         {Workers: []*sluice.Worker{fine}, Grace: -1},
		`Pool.Workers[1]: Periodic[0]: Pool.Workers[0] has the ID "tick" on this queue`: {Workers: []*sluice.Worker{
			worker(func(w *sluice.Worker) {
				w.Periodic = []sluice.Periodic{{ID: "tick", Schedule: sluice.Every(time.Hour)}}
			}),
			worker(func(w *sluice.Worker) {
				w.Queue, w.Periodic = same, []sluice.Periodic{{ID: "tick", Schedule: sluice.Every(time.Minute)}}
			}),
		}},
		"the worker is running already": {Workers: []*sluice.Worker{fine, fine}},
	} {
		t.Run(text, func(t *testing.T) {
			err := p.Run(t.Context())
			require.ErrorIs(t, err, sluice.ErrInvalid)
			if text != "the worker is running already" {
				err = p.Check(t.Context())
				require.ErrorIs(t, err, sluice.ErrInvalid)
			}
			require.ErrorContains(t, err, text)
			require.ErrorIs(t, fine.SetConcurrency(1), sluice.ErrInvalid, "it does not run")
		})
	}
}

// TestPool_RunsWhatRunsNowhereElse: a worker has one place, and a pool too; both may run again.
func TestPool_RunsWhatRunsNowhereElse(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		queues := poolQueues(t, rdb, 2, 1)
		w := &sluice.Worker{Queue: queues[0], Handler: func(context.Context, sluice.Entry) error { return nil }}
		p, other := &sluice.Pool{Workers: []*sluice.Worker{w}}, &sluice.Pool{Workers: []*sluice.Worker{{Queue: queues[1], Handler: w.Handler}, w}}
		for range 2 {
			stop := runPool(t, p)
			time.Sleep(time.Second)
			require.ErrorIs(t, p.Run(t.Context()), sluice.ErrInvalid)
			require.ErrorIs(t, w.Run(t.Context()), sluice.ErrInvalid)
			require.ErrorIs(t, other.Run(t.Context()), sluice.ErrInvalid)
			require.NoError(t, p.SetConcurrency(3), "it runs on")
			require.NoError(t, stop())
		}
		stop := runPool(t, other)
		time.Sleep(time.Second)
		require.NoError(t, stop())
		require.EqualValues(t, 1, w.Stats().Done)
		require.EqualValues(t, 1, other.Workers[0].Stats().Done)
		time.Sleep(time.Minute)
	})
}

// TestPool_StopsAsOne: one Grace, and one error that counts what is left of all.
func TestPool_StopsAsOne(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		queues := poolQueues(t, rdb, 3, 2)
		p := &sluice.Pool{Grace: 5 * time.Second}
		release := make(chan struct{})
		for i, q := range queues {
			p.Workers = append(p.Workers, &sluice.Worker{Queue: q, Handler: func(ctx context.Context, _ sluice.Entry) error {
				if i == 0 {
					<-ctx.Done()
					return context.Cause(ctx)
				}
				<-release
				return nil
			}})
		}
		stop := runPool(t, p)
		time.Sleep(time.Second)
		began := time.Now()
		var unfinished *sluice.UnfinishedError
		require.ErrorAs(t, stop(), &unfinished)
		require.Equal(t, 6*time.Second, time.Since(began))
		require.Equal(t, sluice.UnfinishedError{Running: 4}, *unfinished)
		require.EqualValues(t, 2, p.Workers[0].Stats().Released, "that one's handlers heeded the end of Grace")
		require.ErrorIs(t, p.Run(t.Context()), sluice.ErrInvalid, "some have not returned")
		close(release)
		time.Sleep(time.Minute)
	})
}

// TestPool_IsOfAnyQueues: of several servers and prefixes, with limits, a pause, and periodic
// tasks.
func TestPool_IsOfAnyQueues(t *testing.T) {
	a, b := redistest.Redis(t).Client(t), redistest.Start(t).Client(t)
	var most, running atomic.Int64
	counted := func(ctx context.Context, _ sluice.Entry) error {
		n := running.Add(1)
		defer running.Add(-1)
		most.Store(max(most.Load(), n))
		time.Sleep(5 * time.Millisecond)
		return nil
	}
	newQueue := func(rdb redis.UniversalClient, opts ...sluice.QueueOption) *sluice.Queue {
		q, err := sluice.NewQueue(rdb, redistest.Name(t), append(opts, sluice.WithPollInterval(50*time.Millisecond))...)
		require.NoError(t, err)
		return q
	}
	limited, paused, periodic := newQueue(a, sluice.WithQueuePrefix("limited")), newQueue(b, sluice.WithQueuePrefix("paused")), newQueue(b)
	near := newQueue(a)
	plain := newQueue(b, sluice.WithQueuePrefix("plain"))
	require.NoError(t, limited.SetLimits(t.Context(), sluice.Limits{Running: 1}))
	require.NoError(t, paused.Pause(t.Context(), time.Hour))
	var ticks atomic.Int64
	p := &sluice.Pool{Concurrency: 32, Workers: []*sluice.Worker{
		{Queue: limited, Handler: counted},
		{Queue: paused, Handler: func(context.Context, sluice.Entry) error { return nil }},
		{Queue: periodic, Handler: func(context.Context, sluice.Entry) error { ticks.Add(1); return nil }, Periodic: []sluice.Periodic{{
			ID: "tick", Schedule: sluice.Every(100 * time.Millisecond),
		}}},
		{Queue: near, Handler: func(context.Context, sluice.Entry) error { return nil }},
		{Queue: plain, Handler: func(_ context.Context, e sluice.Entry) error {
			if e.Attempt == 1 {
				return errors.New("no")
			}
			return nil
		}, Backoff: systest.After(0)},
	}}
	for _, w := range p.Workers {
		if w.Queue != periodic {
			_, err := w.Queue.EnqueueBatch(t.Context(), systest.DueTasks(40))
			require.NoError(t, err)
		}
	}
	stop := runPool(t, p)
	done := func(i int) int64 { return p.Workers[i].Stats().Done }
	require.Eventually(t, func() bool { return done(0) == 40 && done(3) == 40 && done(4) == 40 && ticks.Load() >= 2 }, 30*time.Second, 5*time.Millisecond)
	require.EqualValues(t, 1, most.Load())
	require.EqualValues(t, 40, p.Workers[4].Stats().Retried)
	require.Zero(t, done(1))
	require.NoError(t, paused.Resume(t.Context()))
	require.Eventually(t, func() bool { return done(1) == 40 }, 30*time.Second, 5*time.Millisecond)
	require.NoError(t, paused.Pause(t.Context(), 0))
	_, err := paused.Enqueue(t.Context(), sluice.Task{ID: "late"})
	require.NoError(t, err)
	require.NoError(t, stop())
	require.EqualValues(t, 40, done(1))
}

// TestPool_AFullOnePassesTasksOn: what it is told of while all its handlers are busy, another
// process has soon.
func TestPool_AFullOnePassesTasksOn(t *testing.T) {
	for _, fullFor := range []time.Duration{0, time.Second} {
		t.Run(fullFor.String(), func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
				busy := systest.NewQueueTest(t, rdb, "busy", sluice.WithPollInterval(time.Hour))
				clients := [2]redis.UniversalClient{systest.BubbleClient(t, systest.BubbleDialer(m)), systest.BubbleClient(t, systest.BubbleDialer(m))}
				var quiet [2]*sluice.Queue
				for i, client := range clients {
					q, err := sluice.NewQueue(client, "quiet", sluice.WithPollInterval(time.Hour))
					require.NoError(t, err)
					quiet[i] = q
				}
				handled := make(chan int, 1)
				handler := func(i int) sluice.Handler {
					return func(context.Context, sluice.Entry) error { handled <- i; return nil }
				}
				stopOther := runPool(t, &sluice.Pool{Workers: []*sluice.Worker{{Queue: quiet[1], Handler: handler(1)}}})
				time.Sleep(time.Second)
				full := &sluice.Pool{Concurrency: 1, Workers: []*sluice.Worker{
					{Queue: busy.On(clients[0], sluice.WithPollInterval(time.Hour)), Handler: func(context.Context, sluice.Entry) error { time.Sleep(time.Minute); return nil }},
					{Queue: quiet[0], Handler: handler(0)}, // the last in line: it is told first
				}}
				stop := runPool(t, full)
				time.Sleep(time.Second)
				busy.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
				time.Sleep(fullFor + time.Millisecond)
				began := time.Now()
				_, err := quiet[1].Enqueue(t.Context(), sluice.Task{ID: "b"})
				require.NoError(t, err)
				require.Equal(t, 1, <-handled)
				require.LessOrEqual(t, time.Since(began), 45*time.Millisecond)
				time.Sleep(2 * time.Minute)
				require.NoError(t, stop())
				require.NoError(t, stopOther())
				time.Sleep(time.Minute)
				for _, client := range clients {
					require.NoError(t, client.Close())
				}
			})
		})
	}
}

// TestPool_AHungServerHoldsUpNoOther: the others' queues have its handlers, and it has them again
// when it answers.
func TestPool_AHungServerHoldsUpNoOther(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		other := miniredis.NewMiniRedis()
		defer other.Close()
		other.ClockTTL(true)
		faults := redistest.NewFaults(systest.BubbleDialer(other))
		hanging := systest.BubbleClient(t, faults.Dial)
		queues := append(poolQueues(t, rdb, 2, 900), poolQueues(t, hanging, 1, 900)...)
		p := &sluice.Pool{Concurrency: 10}
		for _, q := range queues {
			p.Workers = append(p.Workers, &sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error { time.Sleep(100 * time.Millisecond); return nil }})
		}
		stop := runPool(t, p)
		done := func() (n [3]int64) {
			for i, w := range p.Workers {
				n[i] = w.Stats().Done
			}
			return n
		}
		time.Sleep(2 * time.Second)
		faults.Stall()
		time.Sleep(time.Second)
		before := done()
		time.Sleep(5 * time.Second)
		now := done()
		require.Equal(t, before[2], now[2])
		require.GreaterOrEqual(t, now[0]-before[0]+now[1]-before[1], int64(450), "of 500 that ten handlers can do")
		faults.Resume()
		time.Sleep(5 * time.Second)
		require.Greater(t, done()[2], now[2]+100)
		require.NoError(t, stop())
		time.Sleep(time.Minute)
		require.NoError(t, hanging.Close())
	})
}

// TestPool_SetConcurrencyNeverBlocks: not while Run is about to begin or refused, nor in a hook,
// which the run loop calls.
func TestPool_SetConcurrencyNeverBlocks(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		var p *sluice.Pool
		var finished atomic.Int64
		q, err := sluice.NewQueue(rdb, "q", sluice.WithQueueHooks(sluice.QueueHooks{TaskFinished: func(context.Context, sluice.TaskFinished) {
			finished.Add(1)
			for n := range 3 {
				_ = p.SetConcurrency(1 + n)
				_ = p.Workers[0].SetConcurrency(1 + n)
			}
		}}))
		require.NoError(t, err)
		_, err = q.EnqueueBatch(t.Context(), systest.DueTasks(100))
		require.NoError(t, err)
		w := &sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error { return nil }}
		p = &sluice.Pool{Workers: []*sluice.Worker{w, w}}
		stop := make(chan struct{})
		var setting sync.WaitGroup
		for range 4 {
			setting.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						_, _ = p.SetConcurrency(3), w.SetConcurrency(2)
						time.Sleep(100 * time.Microsecond)
					}
				}
			})
		}
		for range 100 {
			require.ErrorIs(t, p.Run(t.Context()), sluice.ErrInvalid)
		}
		p.Workers = p.Workers[:1]
		end := runPool(t, p)
		time.Sleep(time.Second)
		close(stop)
		setting.Wait()
		require.EqualValues(t, 100, finished.Load())
		require.NoError(t, end())
		time.Sleep(time.Minute)
	})
}
