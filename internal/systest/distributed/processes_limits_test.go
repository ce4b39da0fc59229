package distributed

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// limitedLease is long beside what a handler takes, and so short that the tasks of a killed process
// come back within the test.
const limitedLease = 2 * time.Second

// limitedQueues are the queues of the test, and their limits.
var limitedQueues = map[string]sluice.Limits{
	"rate":    {Rate: 50, Per: time.Second, Burst: 5},
	"both":    {Running: 3, Rate: 10, Per: time.Second, Burst: 2},
	"running": {Running: 3},
	"by hand": {Running: 3},
}

// leastWork is the least that a handler takes; the most is five times that. Of "both", three are at
// work at times, and a killed process keeps the places of some.
var leastWork = map[string]time.Duration{"rate": 4 * time.Millisecond, "both": 50 * time.Millisecond, "running": 4 * time.Millisecond, "by hand": 4 * time.Millisecond}

var _ = systest.Role("limited", workLimited)

// workLimited is the role "limited": it works on each limited queue until its standard input ends.
// Its setting is the server's address.
func workLimited(addr string) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for name := range limitedQueues {
		q, err := sluice.NewQueue(rdb, name, sluice.WithMaxAttempts(-1))
		if err != nil {
			panic(err)
		}
		handle := func(context.Context, sluice.Entry) error {
			time.Sleep(leastWork[name] + rand.N(4*leastWork[name]))
			return nil
		}
		if name == "by hand" {
			for range 4 {
				all.Go(func() { workByHand(ctx, q, handle) })
			}
			continue
		}
		w := &sluice.Worker{Queue: q, Concurrency: 4, Lease: limitedLease, Handler: handle}
		all.Go(func() { _ = w.Run(ctx) })
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	stop()
	all.Wait()
}

// workByHand works without a Worker, which would claim another task as it finishes one: the place
// of each of its tasks is used by another caller.
func workByHand(ctx context.Context, q *sluice.Queue, handle sluice.Handler) {
	for ctx.Err() == nil {
		if q.Wait(ctx) != nil {
			time.Sleep(20 * time.Millisecond) // the server is down
		}
		es, _ := q.Claim(ctx, 1, limitedLease)
		for _, e := range es {
			_ = handle(ctx, e)
			_ = q.Dequeue(context.WithoutCancel(ctx), e)
			time.Sleep(10 * time.Millisecond) // another caller claims
		}
	}
}

// TestLimits_OverProcesses has three worker processes work on queues with limits. One is killed,
// one is stopped, and the server is killed and started again. By the server's log no more tasks
// were handed out than may be, and by its clock hardly fewer.
func TestLimits_OverProcesses(t *testing.T) {
	redistest.NotShort(t)
	// Not parallel: it measures. Tests of other packages take the processors meanwhile, which one
	// stretch may be too short to make up for.
	limitProcesses(t, 1, speed{ofRate: 0.8, median: 5 * time.Millisecond, p99: 100 * time.Millisecond, lease: 2 * time.Second})
}

// speed is what limited queues have to reach.
type speed struct {
	ofRate      float64       // in each stretch without trouble
	median, p99 time.Duration // from when a task is finished until its place is used again
	lease       time.Duration // from when a lease has run out until then, at most: a poll interval if the client that was to look has died
}

// limitProcesses runs the processes for so many rounds: each is trouble, and then five seconds
// without any.
func limitProcesses(t *testing.T, rounds int, want speed) {
	t.Helper()
	const calm = 5 * time.Second
	// Each write is in the file before its reply is sent. With "everysec" it may be later, and be
	// lost with the process.
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0")
	rdb := s.Client(t)
	fillLimited(t, rdb, time.Duration(rounds+1)*(calm+2*limitedLease))
	seen := map[string]*leaseLog{"running": newLeaseLog(limitedQueues["running"]), "by hand": newLeaseLog(limitedQueues["by hand"])}
	stop := monitor(t, s, seen)
	stalled := watchStalls(t)
	mostLeased := sampleLeased(t, rdb)
	begin := func() *systest.Child { return systest.StartChild(t, "limited", s.Addr) }
	workers := []*systest.Child{begin(), begin(), begin()}
	var calms []stretch
	for round := range rounds {
		if round == rounds/2 {
			time.Sleep(500 * time.Millisecond) // they work
			stop()
			s.Down()
			s.Up(t)
			stop = monitor(t, s, seen)
		}
		time.Sleep(500 * time.Millisecond) // they work
		workers[0].Kill()
		workers[0] = begin()
		time.Sleep(300 * time.Millisecond) // likewise
		require.NoError(t, workers[1].Close())
		workers[1] = begin()
		slices.Reverse(workers)
		time.Sleep(limitedLease) // until then the tasks of a killed process have their places
		from := time.Now()
		time.Sleep(calm) // in which it is measured
		calms = append(calms, stretch{seconds(from), seconds(time.Now())})
	}
	for name := range limitedQueues {
		require.Positive(t, systest.NewQueueTest(t, rdb, name).Stats().Due, "the backlog of %s was too small", name)
	}
	stop() // before there is too little to use all places
	for _, w := range workers {
		require.NoError(t, w.Close())
	}
	handed := readLeaseLogs(s.Log(t))
	for name, l := range limitedQueues {
		h := handed[name]
		t.Logf("%s, %+v: %d hand-outs, %d at a time (%d sampled)", name, l, len(h.handedOut), h.mostLive, mostLeased(name))
		if l.Running > 0 {
			require.Equal(t, l.Running, h.mostLive)
			require.LessOrEqual(t, mostLeased(name), l.Running)
		}
		if l.Rate > 0 {
			requireRate(t, h.handedOut, l, calms, stalled, want.ofRate)
		}
	}
	lag := 3 * stalled.lag() // a place is used after three wake-ups at least: of the server, of who was told, of the server
	for name, l := range seen {
		afterFinish, afterLease := stalled.quantiles(within(calms, l.afterFinish)), stalled.quantiles(l.afterLease)
		t.Logf("%s: until a place is used again, in ms p50, p99, max: %.3f after a finish, and %.3f after %d leases that ran out (the machine's lag: %.3f)",
			name, afterFinish, afterLease, len(l.afterLease), lag)
		require.LessOrEqual(t, afterFinish[0], want.median.Seconds()*1e3)
		require.LessOrEqual(t, afterFinish[1], want.p99.Seconds()*1e3+lag)
		require.LessOrEqual(t, afterLease[2], want.lease.Seconds()*1e3)
	}
}

// fillLimited sets the limits, and enqueues more tasks than are worked on in d.
func fillLimited(t *testing.T, rdb redis.UniversalClient, d time.Duration) {
	t.Helper()
	for name, l := range limitedQueues {
		q, err := sluice.NewQueue(rdb, name)
		require.NoError(t, err)
		require.NoError(t, q.SetLimits(t.Context(), l))
		n := l.Rate
		if n == 0 {
			n = 300 * l.Running // so many handlers of some ms at most
		}
		tasks := make([]sluice.Task, n*int(d.Seconds()))
		for i := range tasks {
			tasks[i].ID = fmt.Sprint(i)
		}
		_, err = q.EnqueueBatch(t.Context(), tasks)
		require.NoError(t, err)
	}
}

// sampleLeased asks often how many tasks are leased, until the test ends. It returns what tells the
// most of a queue so far.
func sampleLeased(t *testing.T, rdb redis.UniversalClient) (most func(name string) int) {
	t.Helper()
	var mu sync.Mutex
	found := map[string]int{}
	for name := range limitedQueues {
		q, err := sluice.NewQueue(rdb, name)
		require.NoError(t, err)
		untilEnd(t, func(ctx context.Context) {
			if s, err := q.Stats(ctx); err == nil {
				mu.Lock()
				found[name] = max(found[name], int(s.Leased))
				mu.Unlock()
			}
			time.Sleep(20 * time.Millisecond) // between two samples
		})
	}
	return func(name string) int {
		mu.Lock()
		defer mu.Unlock()
		return found[name]
	}
}

// untilEnd calls f again and again in a goroutine, which ends when the test does; its cleanup waits
// for that.
func untilEnd(t *testing.T, f func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var all sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait() })
	all.Go(func() {
		for ctx.Err() == nil {
			f(ctx)
		}
	})
}
