package workers

import (
	"context"
	"fmt"
	"math"
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

// TestPool_IdleCostsWhatOneWorkerDoes beside a goroutine or two a queue. It runs alone: it counts
// what the process has.
func TestPool_IdleCostsWhatOneWorkerDoes(t *testing.T) {
	redistest.NotShort(t)
	const queues, watched = 50, 2 * time.Second
	type cost struct{ goroutines, scripts int64 }
	measure := func(n int) (c cost) {
		systest.RequireNoGoroutines(t)
		s := redistest.Start(t)
		rdb, control := s.Client(t), redis.NewClient(&redis.Options{Addr: s.Addr})
		defer func() { require.NoError(t, control.Close()) }()
		p := &sluice.Pool{Concurrency: 64}
		var handled atomic.Int64
		for _, q := range poolQueues(t, rdb, n, 0) {
			p.Workers = append(p.Workers, &sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error { handled.Add(1); return nil }})
		}
		stop := runPool(t, p)
		time.Sleep(time.Second)
		c.scripts = math.MaxInt64
		for range 3 { // in one of them they say that they live
			before := scriptsOn(t, control)
			time.Sleep(watched)
			c.scripts = min(c.scripts, scriptsOn(t, control)-before)
		}
		c.goroutines = int64(len(systest.Goroutines()))
		for _, w := range p.Workers { // all at once
			_, err := w.Queue.Enqueue(t.Context(), sluice.Task{ID: "a"})
			require.NoError(t, err)
		}
		require.Eventually(t, func() bool { return handled.Load() == int64(n) }, 20*time.Second, time.Millisecond)
		require.NoError(t, stop())
		return c
	}
	one, many := measure(1), measure(queues)
	t.Logf("a Worker: %+v; a Pool of %d queues: %+v", one, queues, many)
	require.LessOrEqual(t, many.goroutines-one.goroutines, int64(2*queues))
	require.LessOrEqual(t, many.scripts, 2*one.scripts+2, "idle looks are shared")
}

// TestPool_UsesFewConnections when its queues begin to be watched together, and have tasks
// together.
func TestPool_UsesFewConnections(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		faults, sent := redistest.NewFaults(systest.BubbleDialer(m)), new(inFlight)
		client := systest.BubbleClient(t, faults.Dial)
		client.(*redis.Client).AddHook(sent)
		queues := poolQueues(t, client, 50, 0)
		p := &sluice.Pool{Concurrency: 64}
		for _, q := range queues {
			p.Workers = append(p.Workers, &sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error { time.Sleep(11 * time.Second); return nil }})
		}
		faults.Delay(time.Millisecond)
		stop := runPool(t, p)
		time.Sleep(5 * time.Second)
		t.Logf("%d at once at the start", sent.atOnce())
		require.LessOrEqual(t, sent.atOnce(), 6)
		for _, q := range queues {
			_, err := q.Enqueue(t.Context(), sluice.Task{ID: "a"})
			require.NoError(t, err)
		}
		time.Sleep(5 * time.Second)
		t.Logf("%d at once with tasks", sent.atOnce())
		require.LessOrEqual(t, sent.atOnce(), 6)
		require.NoError(t, stop())
		time.Sleep(time.Minute)
		require.NoError(t, client.Close())
	})
}

// inFlight counts what a client has sent that was not answered yet: as many connections are in use.
type inFlight struct {
	mu        sync.Mutex
	now, most int
}

func (f *inFlight) count() (done func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now++
	f.most = max(f.most, f.now)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.now--
	}
}

// atOnce returns how many there were at most.
func (f *inFlight) atOnce() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most
}

func (f *inFlight) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *inFlight) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer f.count()()
		return next(ctx, cmd)
	}
}

func (f *inFlight) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		defer f.count()()
		return next(ctx, cmds)
	}
}

// scriptsOn returns how many scripts the server has run.
func scriptsOn(t *testing.T, rdb *redis.Client) (n int64) {
	t.Helper()
	stats := rdb.InfoMap(t.Context(), "commandstats").Val()["Commandstats"]
	for _, command := range []string{"eval", "evalsha"} {
		var calls int64
		if text := stats["cmdstat_"+command]; text != "" {
			_, err := fmt.Sscanf(text, "calls=%d", &calls)
			require.NoError(t, err)
		}
		n += calls
	}
	return n
}
