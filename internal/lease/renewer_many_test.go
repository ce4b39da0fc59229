package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/redisexec"
)

// cluster is a client of several servers, each of which keeps the keys that begin with its
// name. Like go-redis it waits for all servers that a pipeline goes to.
type cluster struct {
	*server
	masters map[string]*redis.Client

	mu    sync.Mutex               // guards what follows
	slow  map[string]time.Duration // by the servers' names: how long each takes to answer
	moved map[string]string        // by key: the server that keeps it now
	asked int                      // how often MasterForKey was called
}

func newCluster(answer func(redis.Cmder)) *cluster {
	return &cluster{
		server:  &server{answer: answer},
		masters: map[string]*redis.Client{"a": {}, "b": {}, "c": {}},
		slow:    map[string]time.Duration{}, moved: map[string]string{},
	}
}

func (c *cluster) MasterForKey(_ context.Context, key string) (*redis.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return c.masters[c.nameOf(key)], nil
}

func (c *cluster) nameOf(key string) string {
	if name := c.moved[key]; name != "" {
		return name
	}
	return key[:1]
}

func (c *cluster) slowest(keys []string) (slowest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		slowest = max(slowest, c.slow[c.nameOf(key)])
	}
	return slowest
}

func (c *cluster) Pipeline() redis.Pipeliner { return &clusterPipe{pipe{server: c.server}, c} }

type clusterPipe struct {
	pipe
	cluster *cluster
}

func (p *clusterPipe) Exec(ctx context.Context) ([]redis.Cmder, error) {
	slowest := p.cluster.slowest(keysOf(p.cmds))
	defer time.Sleep(slowest)
	return p.pipe.Exec(ctx)
}

// counted is a Renewable with a key of its own that notes when its extensions were sent, and
// counts how often a renewer has looked at it.
type counted struct {
	*held
	key   string
	looks *atomic.Int64

	mu   sync.Mutex // guards sent
	sent []time.Duration
}

func newCounted(key string, ttl time.Duration, looks *atomic.Int64) *counted {
	return &counted{held: newHeld(ttl), key: key, looks: looks}
}

func (c *counted) Key() any            { return c.key }
func (c *counted) TTL() time.Duration  { c.looks.Add(1); return c.held.TTL() }
func (c *counted) Deadline() time.Time { c.looks.Add(1); return c.held.Deadline() }
func (c *counted) Renewable() bool     { c.looks.Add(1); return c.held.Renewable() }

func (c *counted) Extension() (redisexec.Request, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, time.Since(c.start))
	return script.Request([]any{c.key}, "token"), true
}

func (c *counted) HandleExtension(sent time.Time, r redisexec.Result) bool {
	return c.held.HandleExtension(sent, r)
}

func (c *counted) sends() []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]time.Duration{}, c.sent...)
}

// len returns how many leases the renewer knows.
func (r *Renewer) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.entries)
}

// servers returns how many servers the renewer knows.
func (r *Renewer) servers() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.nodes)
}

// waiting returns how many leases are in a schedule.
func (r *Renewer) waiting() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, node := range r.nodes {
		n += len(node.waiting)
	}
	return n
}

// TestRenewer_ExtendsEachByItsOwnTTL: leases of many TTLs, acquired at any time, beside each
// other.
func TestRenewer_ExtendsEachByItsOwnTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(3, 4))
		const delay = 5 * time.Millisecond
		c := newCluster(succeed)
		c.delay = delay
		executor := redisexec.New(c)
		r := NewRenewer(executor)
		ttls := []time.Duration{time.Second, 3 * time.Second, 10 * time.Second, 15 * time.Second, time.Minute}
		var all []*counted
		for i := range 200 {
			h := newCounted(fmt.Sprintf("%c-%d", "abc"[i%3], i), ttls[rnd.IntN(len(ttls))], new(atomic.Int64))
			all = append(all, h)
			r.Add(h)
			time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond)
		}
		time.Sleep(time.Minute)
		for _, h := range all {
			last := time.Duration(0)
			for _, at := range h.sends() {
				require.GreaterOrEqual(t, at-last, RenewAfter(h.ttl)-Leeway(h.ttl), h.ttl)
				require.LessOrEqual(t, at-last, RenewAfter(h.ttl)+Leeway(h.ttl), h.ttl)
				last = at
			}
			require.LessOrEqual(t, time.Since(h.start)-last, RenewAfter(h.ttl)+Leeway(h.ttl)+delay, h.ttl)
			require.True(t, h.lease.Valid())
		}
		r.Close()
		executor.Close(t.Context())
	})
}

// TestRenewer_ServersAreExtendedApart: one that hangs costs its own leases only. While a batch
// is under way to it, its other leases wait for a tenth of their TTL, and go then.
func TestRenewer_ServersAreExtendedApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(succeed)
		c.slow["a"] = time.Minute
		executor := redisexec.New(c)
		r := NewRenewer(executor)
		add := func(key string) *counted {
			h := newCounted(key, 15*time.Second, new(atomic.Int64))
			r.Add(h)
			return h
		}
		a1, b1 := add("a1"), add("b1")
		time.Sleep(time.Second)
		a2 := add("a2") // due within a tenth of its TTL after the first: it goes along
		time.Sleep(time.Second)
		a3, b2 := add("a3"), add("b2")
		time.Sleep(7500 * time.Millisecond)
		require.Equal(t, []time.Duration{5 * time.Second}, a1.sends())
		require.Equal(t, []time.Duration{4 * time.Second}, a2.sends())
		require.Equal(t, []time.Duration{6500 * time.Millisecond}, a3.sends(), "a third and a tenth")
		require.Equal(t, []time.Duration{5 * time.Second}, b1.sends())
		require.Equal(t, []time.Duration{5 * time.Second}, b2.sends(), "nothing is under way there")
		r.Close()
		require.Len(t, c.pipelines(), 4)
		executor.Close(t.Context())
	})
}

// replicated is a lease whose extension waits for a replica.
type replicated struct{ *counted }

func (replicated) Replicas() any { return 1 }

// TestRenewer_WaitsForReplicasApart: of a lease that waits for no replica, no answer comes later because
// of one that does.
func TestRenewer_WaitsForReplicasApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: succeed}
		var keys []string
		s.sent = func(of []string) { keys = append(keys, strings.Join(of, " ")) }
		executor := redisexec.New(s)
		r := NewRenewer(executor)
		for i := range 3 {
			r.Add(newCounted(fmt.Sprint("plain", i), 15*time.Second, new(atomic.Int64)))
			r.Add(replicated{newCounted(fmt.Sprint("replicated", i), 15*time.Second, new(atomic.Int64))})
		}
		time.Sleep(6 * time.Second)
		r.Close()
		executor.Close(t.Context())
		require.Len(t, keys, 2)
		for _, of := range keys {
			require.Contains(t, []int{0, 3}, strings.Count(of, "plain"), of)
		}
	})
}

// TestRenewer_SendsFewBatchesAtOnce: when many leases must be extended by now, four batches more
// are sent to their server, and another four when these are answered or a tenth of the TTL old.
func TestRenewer_SendsFewBatchesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: succeed, delay: 5 * time.Second}
		executor := redisexec.New(s)
		r := NewRenewer(executor)
		all := make([]*held, 12*maxBatch)
		for i := range all {
			all[i] = newHeld(30 * time.Second)
			r.Add(all[i])
		}
		for at, want := range map[time.Duration]int{
			11 * time.Second: 1,
			14 * time.Second: 1 + maxFresh, // a third and a tenth have passed; the first is a tenth old
			17 * time.Second: 1 + 2*maxFresh,
			20 * time.Second: 12,
		} {
			time.AfterFunc(at, func() {
				if got := len(s.pipelines()); got != want {
					t.Errorf("%d pipelines after %v, not %d", got, at, want)
				}
			})
		}
		time.Sleep(25 * time.Second)
		for _, h := range all {
			require.NotEmpty(t, h.times())
		}
		r.Close()
		executor.Close(t.Context())
	})
}

// TestRenewer_ALeaseMayMoveWhileItIsInABatch: a late answer finds that another server keeps the
// key by now, while the lease is in the next batch already.
func TestRenewer_ALeaseMayMoveWhileItIsInABatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(succeed)
		c.slow["a"] = 7 * time.Second
		executor := redisexec.New(c)
		r := NewRenewer(executor)
		h := newCounted("a", 30*time.Second, new(atomic.Int64))
		r.Add(h)
		time.Sleep(16800 * time.Millisecond) // the first batch was given up, and another is under way
		require.Len(t, h.sends(), 2)
		c.mu.Lock()
		c.moved["a"] = "b"
		c.mu.Unlock()
		time.Sleep(400 * time.Millisecond) // the answer to the first comes
		require.Len(t, h.times(), 1)
		require.Zero(t, r.waiting(), "it is in a batch")
		time.Sleep(2 * time.Minute)
		require.True(t, h.lease.Valid())
		require.Equal(t, 1, r.waiting())
		require.Equal(t, 1, r.servers())
		require.Equal(t, 23*time.Second, h.sends()[2], "when the second was given up, and a pause after that")
		r.Close()
		executor.Close(t.Context())
	})
}

// TestRenewer_WhatIsForgottenIsGone from the schedule at once, and from a batch under way: the
// others in it go on.
func TestRenewer_WhatIsForgottenIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: succeed, delay: time.Second}
		executor := redisexec.New(s)
		r := NewRenewer(executor)
		waiting, inBatch, kept := newHeld(30*time.Second), newHeld(30*time.Second), newHeld(30*time.Second)
		r.Add(waiting)
		r.Add(inBatch)
		r.Add(kept)
		require.Nil(t, r.Forget(waiting))
		require.Equal(t, 2, r.waiting())
		time.Sleep(10*time.Second + 500*time.Millisecond)
		require.Equal(t, []int{2}, s.pipelines())
		over := r.Forget(inBatch)
		require.NotNil(t, over)
		start := time.Now()
		<-over
		require.Equal(t, 500*time.Millisecond, time.Since(start))
		synctest.Wait()
		require.Equal(t, 1, r.waiting())
		time.Sleep(31 * time.Second)
		require.Equal(t, []int{2, 1, 1, 1}, s.pipelines())
		require.Len(t, kept.times(), 4)
		require.Empty(t, waiting.times())
		require.Nil(t, r.Forget(kept))
		require.Zero(t, r.len()+r.waiting())
		executor.Close(t.Context())
	})
}

// TestRenewer_RemoveOfManyWaitsOnce: for as long as what is under way takes, or until its context
// ends, however many they are.
func TestRenewer_RemoveOfManyWaitsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(succeed)
		c.slow["a"], c.slow["b"] = 2*time.Second, time.Minute
		executor := redisexec.New(c)
		r := NewRenewer(executor)
		add := func(server string) (all []Renewable) {
			for i := range 2500 {
				h := newCounted(fmt.Sprint(server, i), 30*time.Second, new(atomic.Int64))
				all = append(all, h)
				r.Add(h)
			}
			return all
		}
		onA, onB, onC := add("a"), add("b"), add("c")
		time.Sleep(10*time.Second + time.Millisecond)
		start := time.Now()
		r.Remove(t.Context(), 0, append(onA, onC...)...)
		require.Equal(t, 2*time.Second-time.Millisecond, time.Since(start))
		require.Equal(t, 2500, r.len())
		start = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		r.Remove(ctx, 0, onB...)
		require.Equal(t, 3*time.Second, time.Since(start))
		require.Zero(t, r.len())
		require.Zero(t, r.waiting())
		before := len(c.pipelines())
		time.Sleep(time.Minute)
		require.Len(t, c.pipelines(), before)
		executor.Close(t.Context())
	})
}

// TestRenewer_CloseDuringABatch lets batches end: what they extended counts, and nothing is sent
// again.
func TestRenewer_CloseDuringABatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(succeed)
		c.slow["a"], c.slow["b"] = time.Second, 18*time.Second
		executor := redisexec.New(c)
		r := NewRenewer(executor)
		onA, onB := newCounted("a", 30*time.Second, new(atomic.Int64)), newCounted("b", time.Minute, new(atomic.Int64))
		waiting := newCounted("a2", 2*time.Minute, new(atomic.Int64))
		r.Add(onB)
		time.Sleep(10 * time.Second)
		r.Add(onA)
		r.Add(waiting)
		time.Sleep(10*time.Second + 500*time.Millisecond)
		r.Close()
		require.Zero(t, r.len()+r.waiting())
		start := time.Now()
		executor.Close(t.Context())
		require.Equal(t, 17*time.Second+500*time.Millisecond, time.Since(start), "the loop has ended, and the batches")
		require.Len(t, onA.times(), 1)
		require.Len(t, onB.times(), 1)
		r.Add(newCounted("c", time.Second, new(atomic.Int64)))
		time.Sleep(time.Minute)
		require.Zero(t, r.len()+r.waiting())
		require.Equal(t, []int{1, 1}, c.pipelines())
	})
}

// TestRenewer_CloseEndsTheWaitForABatch that the server may never answer: no caller is left to give
// it up.
func TestRenewer_CloseEndsTheWaitForABatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(succeed)
		c.slow["a"] = time.Hour
		executor := redisexec.New(c)
		r := NewRenewer(executor)
		h := newCounted("a", 30*time.Second, new(atomic.Int64))
		r.Add(h)
		time.Sleep(10*time.Second + time.Millisecond)
		start := time.Now()
		time.AfterFunc(time.Second, r.Close)
		r.Remove(t.Context(), 0, h)
		require.Equal(t, time.Second, time.Since(start))
		require.Equal(t, []int{1}, c.pipelines())
		executor.Close(t.Context())
	})
}

// TestRenewer_WorkIsProportionalToTheExtensions counts how often leases are looked at, among few
// and among many: a scan of all at each wake would be quadratic.
func TestRenewer_WorkIsProportionalToTheExtensions(t *testing.T) {
	t.Parallel()
	looksEach := func(n int) (each float64) {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(succeed)
			c.delay = time.Millisecond
			executor := redisexec.New(c)
			r := NewRenewer(executor)
			var turns atomic.Int64
			r.loop = background.NewLoop(executor.Go, func() time.Duration {
				turns.Add(1)
				return r.turn()
			})
			var looks atomic.Int64
			all := make([]Renewable, n)
			for i := range all {
				all[i] = newCounted(fmt.Sprint("abc"[i%3:i%3+1], i), 30*time.Second, &looks)
				r.Add(all[i])
				if i%100 == 0 {
					time.Sleep(time.Second / 10)
				}
			}
			time.Sleep(time.Minute)
			sent := 0
			for _, size := range c.pipelines() {
				sent += size
			}
			require.Greater(t, sent, 4*n)
			each = float64(looks.Load()) / float64(sent)
			require.Less(t, turns.Load(), int64(10*len(c.pipelines())))
			looks.Store(0)
			r.Remove(t.Context(), 0, all...)
			require.Less(t, looks.Load(), int64(n))
			executor.Close(t.Context())
		})
		return each
	}
	few, many := looksEach(300), looksEach(6000)
	t.Logf("looks at a lease for each extension: %.1f among 300, %.1f among 6,000", few, many)
	require.InDelta(t, few, many, 1)
	require.Less(t, many, 10.0, "a handful, wherever it stands in the schedule")
}
