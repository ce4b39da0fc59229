package virtualtime

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestLocker_PollsWhenEveryNotificationIsLost: the release is a bare DEL, without
// a notification.
func TestLocker_PollsWhenEveryNotificationIsLost(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb)
		defer done()
		holder, done := systest.BubbleLocker(t, rdb)
		defer done()
		for _, interval := range []time.Duration{10 * time.Millisecond, time.Second} {
			for range 10 {
				gone, err := holder.Lock(t.Context(), "a")
				require.NoError(t, err)
				released := make(chan time.Time, 1)
				go func() {
					time.Sleep(1234 * time.Millisecond)
					m.Del("Lock:a")
					released <- time.Now()
				}()
				k, err := l.Lock(t.Context(), "a", sluice.WithRetryInterval(interval))
				require.NoError(t, err)
				require.LessOrEqual(t, time.Since(<-released), interval)
				require.ErrorIs(t, gone.Unlock(t.Context()), sluice.ErrNotHeld)
				require.NoError(t, k.Unlock(t.Context()))
			}
		}
	})
}

// TestLocker_TakesOverWhenTheTTLEnds: a waiter gets the lock when the TTL ends, not a
// retry interval later.
func TestLocker_TakesOverWhenTheTTLEnds(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(10*time.Second), sluice.WithRetryInterval(time.Minute))
		defer done()
		_, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		start := time.Now()
		k, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(start), 10*time.Second+20*time.Millisecond) // what a Locker takes beyond the TTL
		require.NoError(t, k.Unlock(t.Context()))

		// A waiter of another Locker, which is not notified either.
		other, done := systest.BubbleLocker(t, rdb, sluice.WithRetryInterval(time.Minute))
		defer done()
		_, err = l.Lock(t.Context(), "a")
		require.NoError(t, err)
		start = time.Now()
		k, err = other.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(start), 10*time.Second+20*time.Millisecond)
		require.NoError(t, k.Unlock(t.Context()))
	})
}

// TestLocker_WakesOnNotificationsAlone: with intervals of an hour, only a notification can
// wake a waiter.
func TestLocker_WakesOnNotificationsAlone(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(time.Hour), sluice.WithRetryInterval(time.Hour))
		defer done()
		k, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		got := make(chan struct{}, 5)
		for range cap(got) {
			l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(time.Hour), sluice.WithRetryInterval(time.Hour))
			defer done()
			go func() {
				k, err := l.Lock(t.Context(), "a")
				require.NoError(t, err)
				require.NoError(t, k.Unlock(t.Context()))
				got <- struct{}{}
			}()
		}
		// One that gives up must not take a wake-up with it.
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err = l.Lock(ctx, "a")
		require.ErrorIs(t, err, sluice.ErrLocked)
		start := time.Now()
		require.NoError(t, k.Unlock(t.Context()))
		for range cap(got) {
			<-got
		}
		require.Less(t, time.Since(start), time.Second)
	})
}

// TestLocker_UnusedWakeUpIsPassedOn: the first waiter gives up at the very moment at which
// it is woken, so that it may have taken the wake-up without using it. The next waiter must
// not wait for another.
func TestLocker_UnusedWakeUpIsPassedOn(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(time.Hour), sluice.WithRetryInterval(time.Hour))
		defer done()
		type outcome struct {
			k   *sluice.Lock
			err error
		}
		holder, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(time.Hour))
		defer done()
		k, err := holder.Lock(t.Context(), "a")
		require.NoError(t, err)
		for range 40 {
			ctx, cancel := context.WithCancel(t.Context())
			gaveUp := make(chan outcome)
			go func() { k, err := l.Lock(ctx, "a"); gaveUp <- outcome{k, err} }()
			synctest.Wait() // it waits
			next := make(chan *sluice.Lock)
			go func() {
				k, err := l.Lock(t.Context(), "a")
				require.NoError(t, err)
				next <- k
			}()
			synctest.Wait() // it waits too
			released := time.Now()
			go cancel()
			require.NoError(t, k.Unlock(t.Context()))
			if got := <-gaveUp; got.err == nil {
				require.NoError(t, got.k.Unlock(t.Context())) // it was faster than its context
			} else {
				require.ErrorIs(t, got.err, context.Canceled)
			}
			k = <-next
			require.Less(t, time.Since(released), time.Second, "the wake-up was lost")
			require.NoError(t, k.Unlock(t.Context()))
			k, err = holder.Lock(t.Context(), "a")
			require.NoError(t, err)
		}
	})
}

// TestLine_ComesAndGoes: processes that come back after a while find the lock as free as if no line
// had been.
func TestLine_ComesAndGoes(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		const pause = 10 * time.Millisecond
		f, end := newFleet(t, m, 2)
		defer end()
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
		defer cancel()
		var all sync.WaitGroup
		turns := make([]int, 2)
		for i, l := range f.lockers {
			all.Go(func() {
				for ctx.Err() == nil {
					k, err := l.Lock(ctx, "a")
					if err != nil {
						return
					}
					turns[i]++
					time.Sleep(time.Millisecond)
					require.NoError(t, k.Unlock(context.Background()))
					time.Sleep(pause/2 + rand.N(pause/2))
				}
			})
		}
		all.Wait()
		for _, n := range turns {
			require.Greater(t, n, 400, "a turn takes 8.5ms, and what one waits for the other")
		}
	})
}
