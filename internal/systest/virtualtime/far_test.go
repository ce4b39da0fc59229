package virtualtime

import (
	"context"
	"fmt"
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

// far returns a Locker whose server is a round trip away, and knows that.
func far(t *testing.T, m *miniredis.Miniredis, roundTrip time.Duration, opts ...sluice.LockOption) (*sluice.Locker, *redistest.Faults, func()) {
	t.Helper()
	faults := redistest.NewFaults(systest.BubbleDialer(m))
	faults.Delay(roundTrip)
	rdb := systest.BubbleClient(t, faults.Dial)
	l, done := systest.BubbleLocker(t, rdb, opts...)
	note(t, l, 8)
	return l, faults, func() { done(); require.NoError(t, rdb.Close()) }
}

// note has a Locker measure the round trips of so many acquisitions of "a".
func note(t *testing.T, l *sluice.Locker, acquisitions int) {
	t.Helper()
	for range acquisitions {
		k, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, k.Unlock(t.Context()))
	}
}

// crowd are goroutines that lock "a" for a millisecond each, as often as they can.
type crowd struct {
	inside  *atomic.Int32 // of all crowds
	fence   *atomic.Int64 // the last one of all crowds
	longest time.Duration // wait
	n       int
}

// work has so many goroutines work for d.
func (c *crowd) work(t *testing.T, l *sluice.Locker, goroutines int, d time.Duration, opts ...sluice.LockOption) {
	t.Helper()
	var all sync.WaitGroup
	end := time.Now().Add(d)
	for range goroutines {
		all.Go(func() {
			for time.Now().Before(end) {
				start := time.Now()
				k, err := l.Lock(t.Context(), "a", opts...)
				require.NoError(t, err)
				require.EqualValues(t, 1, c.inside.Add(1), "two holders")
				if f := k.Fence(); f > 0 {
					require.Greater(t, f, c.fence.Swap(f), "a fence does not rise")
				}
				c.longest = max(c.longest, time.Since(start)) // within the lock
				c.n++
				time.Sleep(time.Millisecond)
				c.inside.Add(-1)
				require.NoError(t, k.Unlock(t.Context()))
			}
		})
	}
	all.Wait()
}

// TestLocker_HandsOverFarFromItsServer: however far the server is, callers hold the lock for
// half of the time, or nearly so, and the rest goes to round trips.
func TestLocker_HandsOverFarFromItsServer(t *testing.T) {
	for _, roundTrip := range []time.Duration{4, 8, 12, 20, 50} {
		for name, opts := range map[string][]sluice.LockOption{"plain": nil, "fenced": {sluice.WithFencing()}} {
			t.Run(fmt.Sprintf("%dms, %s", roundTrip, name), func(t *testing.T) {
				systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
					l, _, done := far(t, m, roundTrip*time.Millisecond)
					defer done()
					c := crowd{inside: new(atomic.Int32), fence: new(atomic.Int64)}
					c.work(t, l, 16, 2*time.Second, opts...)
					require.Greater(t, c.n, 950, "of 2,000 milliseconds")
				})
			})
		}
	}
}

// TestLocker_IsFairFarFromItsServer: two processes that want one name share it, and neither
// waits for longer than a few windows.
func TestLocker_IsFairFarFromItsServer(t *testing.T) {
	roundTrips := []time.Duration{20, 150, 4, 50}
	for _, roundTrip := range redistest.FullOrShort(roundTrips, roundTrips[:2]) {
		t.Run(fmt.Sprintf("%dms", roundTrip), func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
				var crowds [2]crowd
				var inside atomic.Int32
				var fence atomic.Int64
				var both sync.WaitGroup
				for i := range crowds {
					l, _, done := far(t, m, roundTrip*time.Millisecond)
					defer done()
					crowds[i] = crowd{inside: &inside, fence: &fence}
					both.Go(func() { crowds[i].work(t, l, 8, 10*time.Second) })
				}
				both.Wait()
				a, b := crowds[0], crowds[1]
				require.Less(t, max(a.n, b.n), 2*min(a.n, b.n), "one is starved")
				// At most twice the window of the other one, and its round trips.
				require.Less(t, max(a.longest, b.longest), 2*(200+2*roundTrip)*time.Millisecond)
			})
		})
	}
}

// TestLocker_TakesOverFromACrashFarFromItsServer: a holder to which the lock was handed over
// has its full TTL, covered by the key, which outlives the TTL by the documented margin at the
// most: three round trips, a tenth of the TTL or 200ms, and 2ms.
func TestLocker_TakesOverFromACrashFarFromItsServer(t *testing.T) {
	for _, test := range []struct{ roundTrip, ttl, margin time.Duration }{
		{20 * time.Millisecond, 10 * time.Second, 62 * time.Millisecond},
		{50 * time.Millisecond, 10 * time.Second, 152 * time.Millisecond},
		{150 * time.Millisecond, 10 * time.Second, 202 * time.Millisecond},
		{50 * time.Millisecond, time.Second, 102 * time.Millisecond},
		{20 * time.Millisecond, 250 * time.Millisecond, 27 * time.Millisecond},
	} {
		t.Run(fmt.Sprintf("%v of %v", test.roundTrip, test.ttl), func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, clean redis.UniversalClient) {
				l, _, done := far(t, m, test.roundTrip, sluice.WithTTL(test.ttl))
				defer done()
				other, closeOther := systest.BubbleLocker(t, clean)
				defer closeOther()
				sent := time.Now()
				first, err := l.Lock(t.Context(), "a")
				require.NoError(t, err)
				crashed := make(chan *sluice.Lock)
				go func() {
					k, err := l.Lock(t.Context(), "a")
					require.NoError(t, err)
					crashed <- k
				}()
				time.Sleep(time.Until(sent.Add(test.margin - 3*time.Millisecond))) // the end of the window
				require.NoError(t, first.Unlock(t.Context()))
				k := <-crashed
				require.Equal(t, first.Token(), k.Token(), "not handed over")
				handed := time.Now()
				require.LessOrEqual(t, time.Until(k.Deadline()), m.TTL("Lock:a"), "the key does not cover the TTL")
				require.InDelta(t, test.ttl-test.ttl/100-2*time.Millisecond, time.Until(k.Deadline()), float64(time.Millisecond))

				successor, err := other.Lock(t.Context(), "a")
				require.NoError(t, err)
				require.False(t, k.Valid())
				// And for what the server and the waiter round up.
				require.LessOrEqual(t, time.Since(handed), test.ttl+test.margin+2*time.Millisecond)
				require.NoError(t, successor.Unlock(t.Context()))
				require.ErrorIs(t, k.Unlock(t.Context()), sluice.ErrNotHeld)
			})
		})
	}
}

// TestLocker_WindowGoesBackAfterASlowPhase: what a slow server has widened is narrow again
// with the first quick reply, and one stall widens nothing.
func TestLocker_WindowGoesBackAfterASlowPhase(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		l, faults, done := far(t, m, 0)
		defer done()
		margin := func() time.Duration {
			t.Helper()
			faults.Delay(0)
			k, err := l.Lock(t.Context(), "a", sluice.WithTTL(10*time.Second))
			require.NoError(t, err)
			left := m.TTL("Lock:a")
			require.NoError(t, k.Unlock(t.Context()))
			return left - 10*time.Second
		}
		require.Equal(t, 12*time.Millisecond, margin())
		faults.Delay(2 * time.Second)
		note(t, l, 3) // a stall
		require.Equal(t, 12*time.Millisecond, margin())
		faults.Delay(50 * time.Millisecond)
		note(t, l, 20)
		require.Equal(t, 152*time.Millisecond, margin(), "it does not follow the round trip")
		require.Equal(t, 12*time.Millisecond, margin(), "it stays wide after a quick reply")
	})
}

// TestLock_LateCopyFarFromItsServerHasItsOwnBlock: an acquisition that is carried out late
// has reserved the fences of the window that was chosen for it. If the window has changed
// since, the next attempt must not take a block of another size for it: its first fences
// would be those of an earlier holder.
func TestLock_LateCopyFarFromItsServerHasItsOwnBlock(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, clean redis.UniversalClient) {
		l, faults, done := far(t, m, 0, sluice.WithFencing(), sluice.WithRetryInterval(10*time.Millisecond))
		defer done()
		holder, closeHolder := systest.BubbleLocker(t, clean, sluice.WithFencing())
		defer closeHolder()
		before, err := holder.Lock(t.Context(), "a")
		require.NoError(t, err)

		faults.HoldRequest(1)
		next := make(chan *sluice.Lock)
		go func() {
			k, err := l.Lock(t.Context(), "a")
			require.NoError(t, err)
			next <- k
		}()
		time.Sleep(time.Second) // it has been refused, and polls
		faults.Delay(50 * time.Millisecond)
		time.Sleep(time.Second) // and finds that its server is far away
		m.Del(lineKey)          // so that the lock is not reserved for it
		require.NoError(t, before.Unlock(t.Context()))
		before, err = holder.Lock(t.Context(), "a") // in the same moment, as its fence says
		require.NoError(t, err)
		require.NoError(t, before.Unlock(t.Context()))
		require.Equal(t, 1, faults.Deliver()) // before the next poll
		k := <-next
		require.Greater(t, k.Fence(), before.Fence())
		require.NoError(t, k.Unlock(t.Context()))
	})
}

// TestFar_UnlockByTheLocksOwnContext, which the call itself ends, is answered, and sent once.
func TestFar_UnlockByTheLocksOwnContext(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		l, faults, done := far(t, m, 60*time.Millisecond)
		defer done()
		k, err := l.Lock(t.Context(), "b")
		require.NoError(t, err)
		before := faults.Scripts()
		require.NoError(t, k.Unlock(k.Context()))
		require.Equal(t, before+1, faults.Scripts())

		for range 2 {
			set, err := l.LockAll(t.Context(), []string{"b", "c"})
			require.NoError(t, err)
			before = faults.Scripts()
			require.NoError(t, set.Unlock(set.Context()))
			require.LessOrEqual(t, faults.Scripts(), before+2)
		}
		k, err = l.Lock(t.Context(), "b")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(k.Context(), 20*time.Millisecond)
		defer cancel()
		start := time.Now()
		require.ErrorIs(t, k.Unlock(ctx), sluice.ErrUnknown, "its own deadline stays")
		require.Less(t, time.Since(start), 50*time.Millisecond)
		time.Sleep(time.Minute)
	})
}
