package distributed

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestFailover_OrderlyLosesNothing: a Cluster's primary that is asked to hand over does so
// without loss. So what is lost in other failovers is what had not been replicated.
func TestFailover_OrderlyLosesNothing(t *testing.T) {
	t.Parallel()
	orderly(t, 1)
}

func orderly(t *testing.T, n int) {
	t.Helper()
	f, _ := onCluster(t, "--cluster-node-timeout", "3000") // none but those that are asked for
	l := runFailovers(t, f, 0, n, asked)
	require.Empty(t, l.double, "double grants")
	require.Empty(t, l.lostTasks(), "lost tasks")
}

// runFailovers has primaries fail under load, n times, in the ways of kinds by turns. So many
// replicas are to acknowledge what is counted.
func runFailovers(t *testing.T, f failing, replicas, n int, kinds ...string) *load {
	t.Helper()
	l := newLoad(t, f, replicas)
	l.start()
	count := map[string]int{}
	var outages [2][]time.Duration // of locks, of queues
	var resumed []time.Duration
	for i := range n {
		kind, tag := kinds[i%len(kinds)], f.tags[i/len(kinds)%len(f.tags)]
		took := l.fail(kind, tag)
		count[kind]++
		resumed = append(resumed, took)
		outages[0] = append(outages[0], l.probes[tag+"lock"].longest())
		outages[1] = append(outages[1], l.probes[tag+"queue"].longest())
	}
	l.finish()
	t.Logf("%d failovers under load: %v", n, count)
	t.Logf("outage of locks: p50 %v, max %v; of queues: p50 %v, max %v; all callers had gone on after: p50 %v, max %v",
		half(outages[0]), slices.Max(outages[0]), half(outages[1]), slices.Max(outages[1]), half(resumed), slices.Max(resumed))
	l.report()
	l.check()
	return l
}

func half(ds []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(ds))[len(ds)/2].Round(time.Millisecond)
}

// fail has a primary fail, waits until another has taken its place and all callers have
// gone on, and brings the old one back. It returns how long the slowest caller needed.
func (l *load) fail(kind, tag string) time.Duration {
	l.Helper()
	old := l.serving(l, tag)
	for _, p := range l.probes {
		p.reset()
	}
	l.mu.Lock()
	l.kind = kind
	l.mu.Unlock()
	begun := time.Now()
	switch kind {
	case killed:
		old.Down()
	case hung:
		old.Pause(l)
	}
	var again time.Time
	var refused error
	require.EventuallyWithT(l, func(c *assert.CollectT) {
		if kind == asked && time.Now().After(again) {
			refused, again = l.promote(old), time.Now().Add(5*time.Second)
		}
		now := l.primary(tag)
		assert.True(c, now != nil && now.Addr != old.Addr, "no replica was promoted: %s, %v", kind, refused)
	}, time.Minute, 10*time.Millisecond)
	if kind == hung {
		time.Sleep(rand.N(300 * time.Millisecond)) // the outage: the longer, the more of its clients have left it
		old.Resume(l)
	}
	early := l.replicas > l.remaining
	if kind == killed && early {
		old.Up(l) // until then nothing counts, for want of a replica
	}
	l.awaitSteps()
	took := time.Since(begun)
	if kind == killed && !early {
		old.Up(l) // until now the old one could not tell its clients where to go
	}
	l.servers.AwaitWhole(l)
	return took.Round(time.Millisecond)
}

// TestFailover_ReadOnlyServerIsWaitedFor: every operation waits for a server that is a
// replica for a moment, as some are in a failover.
func TestFailover_ReadOnlyServerIsWaitedFor(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), redistest.Start(t)
	rdb := s.Client(t)
	l, q := systest.NewLocker(t, rdb), systest.NewQueue(t, rdb)
	var plain, fenced *sluice.Lock
	var es []sluice.Entry
	for i, operation := range []func() (err error){
		func() (err error) { plain, err = l.Lock(ctx, "plain"); return err },
		func() (err error) { fenced, err = l.TryLock(ctx, "fenced", sluice.WithFencing()); return err },
		func() error { return plain.Extend(ctx, time.Minute) },
		func() error { return plain.Unlock(ctx) },
		func() error { return fenced.Unlock(ctx) },
		func() error { _, err := q.Enqueue(ctx, sluice.Task{ID: "a"}); return err },
		func() (err error) { es, err = q.Claim(ctx, 1, time.Minute); return err },
		func() error { return q.Dequeue(ctx, es...) },
	} {
		require.NoError(t, rdb.ReplicaOf(ctx, "127.0.0.1", "1").Err())
		result := make(chan error, 1)
		go func() { result <- operation() }()
		select {
		case err := <-result:
			t.Fatalf("operation %d has not waited: %v", i, err)
		case <-time.After(100 * time.Millisecond):
		}
		require.NoError(t, rdb.ReplicaOf(ctx, "no", "one").Err())
		require.NoError(t, <-result, "operation %d", i)
	}
	require.Len(t, es, 1)
}

// TestFailover_APrimaryThatLivesOn as a replica, while its name leads to the new one: a process whose
// connections are still there gets into the line of the new primary all the same.
func TestFailover_APrimaryThatLivesOn(t *testing.T) {
	const lost, later = "waited in a line that was lost", "comes later"
	for _, name := range []string{"waited", lost, later} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			var ended sync.WaitGroup
			defer ended.Wait()
			defer cancel()
			g := redistest.StartReplicated(t, 1)
			replica, at := g.Replicas[0], new(atomic.Value)
			at.Store(g.Addr)
			named := redis.NewClient(&redis.Options{Addr: "primary.example:6379", Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, at.Load().(string))
			}})
			defer func() { require.NoError(t, named.Close()) }()
			l, now := systest.NewLocker(t, named), replica.Direct(t)
			_, err := systest.NewLocker(t, g.Client(t)).TryLock(ctx, "a", sluice.WithTTL(time.Hour))
			require.NoError(t, err)
			lock := func() { ended.Go(func() { _, _ = l.Lock(ctx, "a", sluice.WithFencing()) }) }
			inLine := func() bool { return systest.InLine(ctx, now, "Lock:a") == 1 }
			if name != later {
				lock()
				require.Eventually(t, inLine, 10*time.Second, 10*time.Millisecond)
			}
			var pooled sync.WaitGroup
			for range 3 {
				pooled.Go(func() { _ = named.BLPop(ctx, 100*time.Millisecond, "none").Err() })
			}
			pooled.Wait()

			host, port, _ := net.SplitHostPort(replica.Addr)
			at.Store(replica.Addr)
			require.NoError(t, now.ReplicaOf(ctx, "no", "one").Err())
			require.NoError(t, g.Direct(t).ReplicaOf(ctx, host, port).Err())
			if name == lost {
				require.NoError(t, now.Del(ctx, keyspace.Companion("Lock:a", keyspace.Line)).Err())
			}
			if name == later {
				lock()
			}
			require.Eventually(t, func() bool { return inLine() && systest.Listeners(ctx, now, "Lock:a") == 1 }, 20*time.Second, 10*time.Millisecond)
		})
	}
}
