package sluice_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// bubble runs a test on a fake clock, with a miniredis that lives by it. Timing
// is exact here: what a test measures is what the code waits.
func bubble(t *testing.T, test func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		defer m.Close()
		m.ClockTTL(true)
		rdb := bubbleClient(t, dialer(m))
		defer func() { require.NoError(t, rdb.Close()) }()
		test(t, m, rdb)
	})
}

// dialer makes connections to m. As a kernel does, and a net.Pipe doesn't, they take
// what is written whether or not it is being read: or else one client that does not
// read would hold up the whole server, and a long pipeline both.
func dialer(m *miniredis.Miniredis) redistest.Dialer {
	return func(context.Context, string, string) (net.Conn, error) {
		server, err := m.Dial()
		if err != nil {
			return nil, err
		}
		client, wire := net.Pipe()
		go carry(server, wire)
		go carry(wire, server)
		return client, nil
	}
}

// carry brings what is written at one end to the other, until either is closed.
func carry(from, to net.Conn) {
	packets := make(chan []byte, 1000)
	go func() {
		defer func() { _ = to.Close() }()
		for p := range packets {
			if _, err := to.Write(p); err != nil {
				_ = from.Close()
			}
		}
	}()
	defer close(packets)
	for {
		p := make([]byte, 4096)
		n, err := from.Read(p)
		if err != nil {
			return
		}
		packets <- p[:n]
	}
}

func bubbleClient(t *testing.T, dial redistest.Dialer) redis.UniversalClient {
	t.Helper()
	return redis.NewClient(&redis.Options{
		Addr:                     "127.0.0.1:6379", // a literal IP: looking up a name does not work in a bubble
		Dialer:                   dial,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

func bubbleLocker(t *testing.T, rdb redis.UniversalClient, opts ...sluice.LockOption) (*sluice.Locker, func()) {
	t.Helper()
	l, err := sluice.NewLocker(rdb, opts...)
	require.NoError(t, err)
	return l, func() { require.NoError(t, l.Close()) }
}

func TestDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := bubbleLocker(t, rdb)
		defer done()
		for ttl, margin := range map[time.Duration]time.Duration{
			15 * time.Second:      152 * time.Millisecond, // 1% and 2ms
			time.Hour:             36*time.Second + 2*time.Millisecond,
			10 * time.Millisecond: 2100 * time.Microsecond,
			time.Millisecond:      500 * time.Microsecond, // half, where that is less
		} {
			start := time.Now()
			k, err := l.Lock(t.Context(), "a", sluice.WithTTL(ttl))
			require.NoError(t, err)
			require.Equal(t, ttl-margin, k.Deadline().Sub(start))
			require.Equal(t, ttl+12*time.Millisecond, m.TTL("Lock:a"), "the TTL, and what covers a hand-over")
			<-k.Context().Done()
			require.Equal(t, ttl-margin, time.Since(start))
			require.ErrorIs(t, context.Cause(k.Context()), sluice.ErrLost)
			require.False(t, k.Valid())
			require.True(t, m.Exists("Lock:a"), "the key was gone before its holder knew")
			require.NoError(t, k.Unlock(t.Context()), "it was still there to be released")
		}
	})
}

func TestExtendMovesTheDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := bubbleLocker(t, rdb, sluice.WithTTL(10*time.Second))
		defer done()
		k, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		held := k.Context()
		for range 360 { // an hour
			time.Sleep(9 * time.Second)
			require.NoError(t, k.Extend(t.Context(), 10*time.Second))
			require.NoError(t, held.Err())
			require.Equal(t, 10*time.Second+12*time.Millisecond, m.TTL("Lock:a"))
		}
		start := time.Now()
		require.NoError(t, k.Extend(t.Context(), time.Second)) // there is more left
		<-held.Done()
		require.Equal(t, 9898*time.Millisecond, time.Since(start))
		require.True(t, m.Exists("Lock:a"))
	})
}

// TestEveryNotificationLost: the release is a DEL that tells nobody.
func TestEveryNotificationLost(t *testing.T) {
	bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := bubbleLocker(t, rdb)
		defer done()
		holder, done := bubbleLocker(t, rdb)
		defer done()
		for _, interval := range []time.Duration{10 * time.Millisecond, time.Second} {
			for range 20 {
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

// TestHolderCrashed: whoever waits gets the lock when the TTL ends, not a retry
// interval later.
func TestHolderCrashed(t *testing.T) {
	bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := bubbleLocker(t, rdb, sluice.WithTTL(10*time.Second), sluice.WithRetryInterval(time.Minute))
		defer done()
		_, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		start := time.Now()
		k, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(start), 10*time.Second+20*time.Millisecond) // what a Locker takes beyond the TTL
		require.NoError(t, k.Unlock(t.Context()))

		// One that is not told either, and has another Locker.
		other, done := bubbleLocker(t, rdb, sluice.WithRetryInterval(time.Minute))
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

// TestNotified: with intervals of an hour, only a notification can wake a waiter.
func TestNotified(t *testing.T) {
	bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := bubbleLocker(t, rdb, sluice.WithTTL(time.Hour), sluice.WithRetryInterval(time.Hour))
		defer done()
		k, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		got := make(chan struct{}, 5)
		for range cap(got) {
			l, done := bubbleLocker(t, rdb, sluice.WithTTL(time.Hour), sluice.WithRetryInterval(time.Hour))
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

// TestGivingUpWhenWoken: the first in line gives up at the very moment at which it
// is woken, so that it may have taken the wake-up and make no use of it. The next
// one must not wait for another.
func TestGivingUpWhenWoken(t *testing.T) {
	bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := bubbleLocker(t, rdb, sluice.WithTTL(time.Hour), sluice.WithRetryInterval(time.Hour))
		defer done()
		type outcome struct {
			k   *sluice.Lock
			err error
		}
		holder, done := bubbleLocker(t, rdb, sluice.WithTTL(time.Hour))
		defer done()
		k, err := holder.Lock(t.Context(), "a")
		require.NoError(t, err)
		for range 40 {
			ctx, cancel := context.WithCancel(t.Context())
			gaveUp := make(chan outcome)
			go func() { k, err := l.Lock(ctx, "a"); gaveUp <- outcome{k, err} }()
			time.Sleep(time.Second)
			next := make(chan *sluice.Lock)
			go func() {
				k, err := l.Lock(t.Context(), "a")
				require.NoError(t, err)
				next <- k
			}()
			time.Sleep(time.Second)
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

func TestWaitOnAFakeClock(t *testing.T) {
	bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		ctx := t.Context()
		q, err := sluice.NewQueue(rdb, "q", sluice.WithPollInterval(time.Hour))
		require.NoError(t, err)

		// It ends when the head is due, to the microsecond.
		start := time.Now()
		_, err = q.Enqueue(ctx, sluice.Task{ID: "a", Delay: 25 * time.Minute})
		require.NoError(t, err)
		require.NoError(t, q.Wait(ctx))
		require.InDelta(t, 25*time.Minute, time.Since(start), float64(2*time.Microsecond))
		es, err := q.Claim(ctx, 1, 10*time.Minute)
		require.NoError(t, err)
		require.Len(t, es, 1)

		// When a lease ends.
		start = time.Now()
		require.NoError(t, q.Wait(ctx))
		require.InDelta(t, 10*time.Minute, time.Since(start), float64(2*time.Microsecond))
		es, err = q.Claim(ctx, 1, 50*time.Minute)
		require.NoError(t, err)
		require.Len(t, es, 1)

		// When an earlier head comes.
		start = time.Now()
		time.AfterFunc(time.Minute, func() {
			_, err := q.Enqueue(ctx, sluice.Task{ID: "b", Delay: time.Second})
			require.NoError(t, err)
		})
		require.NoError(t, q.Wait(ctx))
		require.InDelta(t, 61*time.Second, time.Since(start), float64(2*time.Microsecond))
		_, err = q.Pop(ctx, 1)
		require.NoError(t, err)

		// When one comes that nobody tells of: after the poll interval.
		start = time.Now()
		time.AfterFunc(time.Minute, func() {
			_, err := m.ZAdd("Queue:q", 1, "foreign")
			require.NoError(t, err)
		})
		require.NoError(t, q.Wait(ctx))
		require.LessOrEqual(t, time.Since(start), time.Hour)
		require.NoError(t, q.Purge(ctx))

		// When its context ends.
		ctx, cancel := context.WithTimeout(ctx, 90*time.Minute)
		defer cancel()
		start = time.Now()
		require.ErrorIs(t, q.Wait(ctx), context.DeadlineExceeded)
		require.Equal(t, 90*time.Minute, time.Since(start))
		require.ErrorIs(t, q.Wait(ctx), context.DeadlineExceeded)
		time.Sleep(time.Minute) // so that what lingers has ended
	})
}

// TestIdle: processes that wait for nothing send a command a second, however
// many goroutines wait.
func TestIdle(t *testing.T) {
	bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 10 {
			go func() { _ = q.Wait(ctx) }()
		}
		time.Sleep(time.Minute + time.Second/2) // between two looks
		before := m.CommandCount()
		time.Sleep(time.Hour)
		// A look is an EVALSHA of three commands; miniredis counts each.
		require.LessOrEqual(t, m.CommandCount()-before, 3600*3)
		cancel()
		time.Sleep(time.Minute)
	})
}

// TestSubscriptionsEnd: what nobody listens to is given back, without a Close,
// but not between two waits of a loop.
func TestSubscriptionsEnd(t *testing.T) {
	bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, q.Wait(ctx), context.DeadlineExceeded)
		time.Sleep(4 * time.Second)
		require.Len(t, m.PubSubChannels("*"), 1)
		time.Sleep(2 * time.Second)
		require.Empty(t, m.PubSubChannels("*"))
	})
}
