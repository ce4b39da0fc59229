package virtualtime

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
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

const (
	lockKey = "Lock:a"
	lineKey = "{Lock:a}:line"
)

// fleet is processes that want one lock: each a Locker with a client of its own, whose connections
// may fail.
type fleet struct {
	*testing.T
	m       *miniredis.Miniredis
	lockers []*sluice.Locker
	clients []redis.UniversalClient
	faults  []*redistest.Faults
	deaths  []context.CancelFunc // which end all connections of a process, for good
	ways    []*atomic.Int64      // how long what a process sends takes to the server, and back: each way, in ns
}

// newFleet returns a fleet of n processes, and the function that ends it.
func newFleet(t *testing.T, m *miniredis.Miniredis, n int, opts ...sluice.LockOption) (f *fleet, end func()) {
	t.Helper()
	f = &fleet{T: t, m: m}
	for range n {
		alive, die := context.WithCancel(context.Background())
		way := new(atomic.Int64)
		faults := redistest.NewFaults(mortal(alive, systest.DistantDialer(m, way)))
		rdb := systest.BubbleClientOf(t, faults.Dial, 20)
		l, err := sluice.NewLocker(rdb, opts...)
		require.NoError(t, err)
		f.lockers, f.clients = append(f.lockers, l), append(f.clients, rdb)
		f.faults, f.deaths, f.ways = append(f.faults, faults), append(f.deaths, die), append(f.ways, way)
	}
	return f, func() {
		for i, l := range f.lockers {
			_ = l.Close()
			_ = f.clients[i].Close()
			f.deaths[i]()
		}
		time.Sleep(time.Minute)
	}
}

// mortal makes connections that end with ctx.
func mortal(ctx context.Context, dial redistest.Dialer) redistest.Dialer {
	return func(dialing context.Context, network, addr string) (net.Conn, error) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		c, err := dial(dialing, network, addr)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = c.Close() })
		}
		return c, err
	}
}

// moveAway puts process i at a distance from the server: a round trip takes so long from now on.
func (f *fleet) moveAway(i int, trip time.Duration) { f.ways[i].Store(int64(trip / 2)) }

// hold takes the lock for process i.
func (f *fleet) hold(i int, opts ...sluice.LockOption) *sluice.Lock {
	f.Helper()
	k, err := f.lockers[i].Lock(context.Background(), "a", opts...)
	require.NoError(f, err)
	return k
}

// granted is a lock and when it was granted to a process.
type granted struct {
	process int
	lock    *sluice.Lock
	at      time.Time
}

// enter has processes wait for the lock, one after the other, and returns where they say that they
// have it.
func (f *fleet) enter(ctx context.Context, from, to int) <-chan granted {
	f.Helper()
	got := make(chan granted, to-from)
	for i := from; i < to; i++ {
		go func() {
			if k, err := f.lockers[i].Lock(ctx, "a"); err == nil {
				got <- granted{i, k, time.Now()}
			}
		}()
		require.Eventually(f, func() bool { return f.waiting() == i-from+1 }, time.Minute, time.Millisecond)
	}
	return got
}

// waiting returns how many processes are in line.
func (f *fleet) waiting() int {
	members, err := f.m.ZMembers(lineKey)
	if err != nil {
		return 0
	}
	return len(members)
}

// release releases a lock, and returns when.
func (f *fleet) release(k *sluice.Lock) time.Time {
	f.Helper()
	require.NoError(f, k.Unlock(context.Background()))
	return time.Now()
}

// TestLine_ServesProcessesInOrder: each release wakes the process that has waited longest, and no
// other one.
func TestLine_ServesProcessesInOrder(t *testing.T) {
	for name, opts := range map[string][]sluice.LockOption{"plain": nil, "fenced": {sluice.WithFencing()}, "permits": {sluice.WithPermits(2)}} {
		t.Run(name, func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
				f, end := newFleet(t, m, 30, append(opts, sluice.WithRetryInterval(time.Hour), sluice.WithTTL(2*time.Hour))...)
				defer end()
				k := f.hold(0)
				if name == "permits" {
					f.hold(1)
				}
				got := f.enter(t.Context(), 2, 30)
				for i := 2; i < 30; i++ {
					released := f.release(k)
					next := <-got
					require.Equal(t, i, next.process)
					require.Equal(t, released, next.at, "it was not woken")
					time.Sleep(5 * time.Millisecond)
					require.Empty(t, got)
					k = next.lock
				}
				require.False(t, m.Exists(lineKey))
			})
		})
	}
}

// TestLine_TurnsAreEqual: of processes that never stop, none has the lock more often than the
// others, however many callers it has; and none of them has to poll.
func TestLine_TurnsAreEqual(t *testing.T) {
	for name, callers := range map[string]int{"one caller": 1, "four callers": 4} {
		t.Run(name, func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
				const n = 20
				f, end := newFleet(t, m, n)
				defer end()
				turns, sent := f.work(callers, time.Second)
				least, most, all := turns[0], turns[0], 0
				for _, n := range turns {
					least, most, all = min(least, n), max(most, n), all+n
				}
				require.Greater(t, all, 500, "sections of a millisecond")
				require.GreaterOrEqual(t, float64(least), 0.9*float64(most), turns)
				require.LessOrEqual(t, float64(sent)/float64(all), 3.2, "scripts a section")
			})
		})
	}
}

// work has the callers of each process take the lock again and again, for a millisecond each time,
// and returns how often each process had it and how many scripts all have sent.
func (f *fleet) work(callers int, d time.Duration) (turns []int, sent int) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	turns = make([]int, len(f.lockers)) // guarded by the lock
	var all sync.WaitGroup
	for i, l := range f.lockers {
		for range callers {
			all.Go(func() {
				for ctx.Err() == nil {
					k, err := l.Lock(ctx, "a")
					if err != nil {
						return
					}
					turns[i]++
					time.Sleep(time.Millisecond)
					require.NoError(f, k.Unlock(context.Background()))
				}
			})
		}
	}
	all.Wait()
	for _, faults := range f.faults {
		sent += faults.Scripts()
	}
	return turns, sent
}

// TestLine_TheReleaserDoesNotOvertake the process that its release has woken: it joins the line
// first, although that is empty.
func TestLine_TheReleaserDoesNotOvertake(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		f, end := newFleet(t, m, 2)
		defer end()
		f.faults[1].Delay(500 * time.Microsecond) // the releaser is nearer to the server
		k := f.hold(0)
		for range 20 {
			got := f.enter(t.Context(), 1, 2)
			released := f.release(k)
			time.AfterFunc(5*time.Millisecond, func() { f.release((<-got).lock) })
			k = f.hold(0) // at once
			require.GreaterOrEqual(t, time.Since(released), 5*time.Millisecond, "it overtakes")
		}
		f.release(k)
	})
}

// TestLine_TheReleaserWaitsForNone that has had the lock already: a process that comes back later
// takes it at once.
func TestLine_TheReleaserWaitsForNone(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		f, end := newFleet(t, m, 2)
		defer end()
		for _, later := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, time.Second} {
			k := f.hold(0)
			got := f.enter(t.Context(), 1, 2)
			f.release(k)
			f.release((<-got).lock)
			time.Sleep(later)
			start := time.Now()
			f.release(f.hold(0))
			require.LessOrEqual(t, time.Since(start), 5*time.Millisecond, later)
			time.Sleep(time.Second)
		}
	})
}

// TestLine_TheDeadAreSkipped, if the server knows that their connections have ended: by one
// release.
func TestLine_TheDeadAreSkipped(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		const interval = 10 * time.Second
		for dead, bound := range map[int]time.Duration{1: 0, 15: 0, 40: 0} {
			f, end := newFleet(t, m, dead+2, sluice.WithRetryInterval(interval), sluice.WithTTL(time.Hour))
			k := f.hold(0)
			got := f.enter(t.Context(), 1, dead+2)
			for i := 1; i <= dead; i++ {
				f.deaths[i]()
			}
			time.Sleep(time.Millisecond)
			released := f.release(k)
			next := <-got
			require.Equal(t, dead+1, next.process)
			require.LessOrEqual(t, next.at.Sub(released), bound, "%d dead", dead)
			f.release(next.lock)
			end()
			m.Del(lineKey)
		}
	})
}

// TestLine_HalfOpenCostsAPoll: the first in line is woken, and does not hear it. A poll, its own or
// the next one's, finds the lock free within a retry interval.
func TestLine_HalfOpenCostsAPoll(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		const interval = time.Second
		for range 20 {
			f, end := newFleet(t, m, 4, sluice.WithRetryInterval(interval), sluice.WithTTL(time.Hour))
			k := f.hold(0)
			got := f.enter(t.Context(), 1, 4)
			f.faults[1].HalfOpen()
			released := f.release(k)
			for range 3 {
				next := <-got
				require.LessOrEqual(t, next.at.Sub(released), interval)
				released = f.release(next.lock)
			}
			end()
		}
	})
}

// TestLine_EveryMessageIsLost: the releases are bare DELs, and none is told that it is first. Some
// process has the free lock within a retry interval.
func TestLine_EveryMessageIsLost(t *testing.T) {
	for _, n := range []int{1, 3, redistest.FullOrShort(150, 30)} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
				const interval = 100 * time.Millisecond
				f, end := newFleet(t, m, n+1, sluice.WithRetryInterval(interval), sluice.WithTTL(time.Hour))
				defer end()
				f.hold(0)
				got := f.enter(t.Context(), 1, n+1)
				for range n {
					time.Sleep(rand.N(2 * interval))
					m.Del(lockKey)
					released := time.Now()
					require.LessOrEqual(t, (<-got).at.Sub(released), interval)
				}
			})
		})
	}
}

// TestLine_ACrashCostsTheTTL: the first of many takes over from a holder that died, and no other
// one asks for it.
func TestLine_ACrashCostsTheTTL(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		const n, ttl = 30, 10 * time.Second                                                     // of more, one might poll at the end of the TTL by chance
		f, end := newFleet(t, m, n+2, sluice.WithRetryInterval(time.Hour), sluice.WithTTL(ttl)) // no poll meets the end of the TTL
		defer end()
		k := f.hold(0)
		got := f.enter(t.Context(), 1, n+2)
		f.release(k)
		dead := <-got // by a script, which tells the next one that it is first
		require.Equal(t, 1, dead.process)
		next := <-got
		require.Equal(t, 2, next.process)
		require.LessOrEqual(t, next.at.Sub(dead.at), ttl+14*time.Millisecond) // 12ms, and one for the poll
		f.release(next.lock)
		require.Equal(t, 3, (<-got).process, "the order is as before")
	})
}

// TestLine_WhoIsToldIsFirstAfterALeave: the first gives up, and the one behind it takes over when
// the holder's TTL ends.
func TestLine_WhoIsToldIsFirstAfterALeave(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		const ttl = 10 * time.Second
		f, end := newFleet(t, m, 5, sluice.WithRetryInterval(time.Hour), sluice.WithTTL(ttl))
		defer end()
		held := time.Now()
		f.hold(0)
		ctx, cancel := context.WithCancel(t.Context())
		_ = f.enter(ctx, 1, 4)
		got := make(chan granted, 1)
		go func() { got <- granted{4, f.hold(4), time.Now()} }()
		require.Eventually(t, func() bool { return f.waiting() == 4 }, time.Second, time.Millisecond)
		cancel() // three leave
		require.Eventually(t, func() bool { return f.waiting() == 1 }, time.Second, time.Millisecond)
		require.LessOrEqual(t, (<-got).at.Sub(held), ttl+14*time.Millisecond)
	})
}

// TestLine_WhoLeavesWakesTheNext: the first is woken, and gives up before its attempt arrives.
func TestLine_WhoLeavesWakesTheNext(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		f, end := newFleet(t, m, 3, sluice.WithRetryInterval(time.Hour), sluice.WithTTL(time.Hour))
		defer end()
		for range 20 {
			k := f.hold(0)
			ctx, cancel := context.WithCancel(t.Context())
			first := make(chan error, 1)
			go func() { _, err := f.lockers[1].Lock(ctx, "a"); first <- err }()
			require.Eventually(t, func() bool { return f.waiting() == 1 }, time.Second, time.Millisecond)
			next := make(chan *sluice.Lock, 1)
			go func() { next <- f.hold(2) }()
			require.Eventually(t, func() bool { return f.waiting() == 2 }, time.Second, time.Millisecond)
			f.faults[1].StallRequests() // the message comes, and the attempt does not arrive
			released := f.release(k)
			time.Sleep(time.Millisecond)
			cancel()
			require.Error(t, <-first)
			f.faults[1].Resume()
			k = <-next
			require.LessOrEqual(t, time.Since(released), time.Second)
			f.release(k)
			time.Sleep(time.Minute)
			require.Zero(t, f.waiting())
		}
	})
}

// TestLine_IsAHint: whatever becomes of the line, each process has the lock within its polls; and
// later the line serves them again.
func TestLine_IsAHint(t *testing.T) {
	for name, spoil := range map[string]func(m *miniredis.Miniredis){
		"deleted": func(m *miniredis.Miniredis) { m.Del(lineKey) },
		"foreign": func(m *miniredis.Miniredis) { m.Del(lineKey); _ = m.Set(lineKey, "foreign") },
		"foreign members": func(m *miniredis.Miniredis) {
			m.Del(lineKey)
			_, _ = m.ZAdd(lineKey, 0, "foreign")
			_, _ = m.ZAdd(lineKey, 1, "*")
		},
	} {
		t.Run(name, func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
				const n, interval = 5, 100 * time.Millisecond
				f, end := newFleet(t, m, n+1, sluice.WithRetryInterval(interval), sluice.WithTTL(time.Hour))
				defer end()
				k := f.hold(0)
				got := f.enter(t.Context(), 1, n+1)
				spoil(m)
				for range n {
					released := f.release(k)
					next := <-got
					require.LessOrEqual(t, next.at.Sub(released), interval)
					k = next.lock
				}
				f.release(k)
				m.Del(lineKey)
				k = f.hold(0)
				got = f.enter(t.Context(), 1, n+1)
				for i := range n {
					released := f.release(k)
					next := <-got
					require.Equal(t, released, next.at)
					require.Equal(t, i+1, next.process)
					k = next.lock
				}
			})
		})
	}
}

// TestLine_NothingIsLeft of waits of which most are given up, at any moment.
func TestLine_NothingIsLeft(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		const n, waits = 20, 60
		f, end := newFleet(t, m, n)
		defer end()
		var all sync.WaitGroup
		for i, l := range f.lockers {
			all.Go(func() {
				for range waits {
					f.faults[i].Delay(rand.N(2 * time.Millisecond))
					ctx, cancel := context.WithTimeout(context.Background(), rand.N(20*time.Millisecond))
					if k, err := l.Lock(ctx, "a"); err == nil {
						time.Sleep(rand.N(3 * time.Millisecond))
						_ = k.Unlock(ctx)
					}
					cancel()
				}
			})
		}
		all.Wait()
		time.Sleep(2 * time.Second)
		require.Empty(t, m.Keys())
		time.Sleep(11 * time.Second)
		require.Empty(t, m.PubSubChannels("*"))
	})
}

// TestLine_EndsByItself: of processes that died in line nothing is left a minute after the last
// poll.
func TestLine_EndsByItself(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		f, end := newFleet(t, m, 4, sluice.WithTTL(24*time.Hour))
		defer end()
		f.hold(0)
		f.enter(t.Context(), 1, 4)
		time.Sleep(2 * time.Minute)
		require.Equal(t, 3, f.waiting(), "those that live keep it")
		for _, faults := range f.faults {
			faults.Stall()
		}
		time.Sleep(61 * time.Second)
		require.False(t, m.Exists(lineKey))
		for _, faults := range f.faults {
			faults.Resume()
		}
		synctest.Wait()
	})
}

// TestLine_LastsAsLongAsItIsWaitedFor: with a retry interval that is longer than the line's TTL,
// and a holder that is slow.
func TestLine_LastsAsLongAsItIsWaitedFor(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		f, end := newFleet(t, m, 3, sluice.WithRetryInterval(time.Hour), sluice.WithTTL(24*time.Hour))
		defer end()
		k := f.hold(0)
		got := f.enter(t.Context(), 1, 3)
		for range 2 {
			time.Sleep(10 * time.Minute)
			released := f.release(k)
			next := <-got
			require.Equal(t, released, next.at, "it was not woken")
			k = next.lock
		}
	})
}
