package faults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestLocker_NoticesAReleaseBeforeItsSubscription: the lock is released after the waiter
// has polled and before the server has subscribed it. No notification can come of it; the
// waiter has to poll again when the subscription is confirmed.
func TestLocker_NoticesAReleaseBeforeItsSubscription(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		rdb, faults := s.Faulty(t)
		require.NoError(t, rdb.Ping(t.Context()).Err()) // has a connection for the poll
		holder, waiter := systest.NewLocker(t, s.Client(t)), systest.NewLocker(t, rdb, sluice.WithRetryInterval(time.Minute))
		k, err := holder.Lock(t.Context(), name)
		require.NoError(t, err)
		// Now every reply takes 150ms: that to the poll comes at 150, that to the
		// subscription's handshake at 300.
		faults.Delay(150 * time.Millisecond)
		start := time.Now()
		time.AfterFunc(220*time.Millisecond, func() {
			faults.Delay(50 * time.Millisecond)
			_ = k.Unlock(t.Context())
		})
		_, err = waiter.Lock(t.Context(), name)
		require.NoError(t, err)
		require.Less(t, time.Since(start), 20*time.Second)
		faults.Delay(0)
	})
}

// TestLocker_NoticesAReleaseBeforeItListens: likewise where the subscription is there
// already, from an earlier wait, and the notification comes before the waiter listens.
func TestLocker_NoticesAReleaseBeforeItListens(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		rdb, faults := s.Faulty(t)
		holder, waiter := systest.NewLocker(t, s.Client(t)), systest.NewLocker(t, rdb, sluice.WithRetryInterval(time.Minute))
		k, err := holder.Lock(t.Context(), name)
		require.NoError(t, err)
		time.AfterFunc(50*time.Millisecond, func() { _ = k.Unlock(t.Context()) })
		waited, err := waiter.Lock(t.Context(), name)
		require.NoError(t, err)
		require.NoError(t, waited.Unlock(t.Context()))
		k, err = holder.Lock(t.Context(), name)
		require.NoError(t, err)

		// The replies to the waiter's two polls take 150ms each. The second poll is
		// carried out at 150; the release and its notification come before 300.
		faults.Delay(150 * time.Millisecond)
		start := time.Now()
		time.AfterFunc(200*time.Millisecond, func() {
			faults.Delay(0)
			_ = k.Unlock(t.Context())
		})
		_, err = waiter.Lock(t.Context(), name)
		require.NoError(t, err)
		require.Less(t, time.Since(start), 20*time.Second)
	})
}

// TestLocker_ReplacesAQuietSubscription: a pub/sub connection that went quiet without an
// error costs an interval, is found out by that, and replaced.
func TestLocker_ReplacesAQuietSubscription(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, lag := redistest.Name(t), systest.Lag(t)
		rdb, faults := s.Faulty(t)
		holder, waiter := systest.NewLocker(t, s.Client(t)), systest.NewLocker(t, rdb)
		// wait returns how late a waiter gets the lock.
		wait := func(interval time.Duration) time.Duration {
			k, err := holder.Lock(t.Context(), name)
			require.NoError(t, err)
			released := make(chan time.Time, 1)
			time.AfterFunc(50*time.Millisecond, func() {
				released <- time.Now()
				_ = k.Unlock(t.Context())
			})
			k, err = waiter.Lock(t.Context(), name, sluice.WithRetryInterval(interval))
			require.NoError(t, err)
			late := time.Since(<-released)
			require.NoError(t, k.Unlock(t.Context()))
			return late
		}
		require.Less(t, wait(2*time.Second), 300*time.Millisecond+10*lag())
		faults.HalfOpen()
		require.Less(t, wait(400*time.Millisecond), 600*time.Millisecond+10*lag())
		// It is replaced when a PING was not answered for a few seconds. A busy machine may need
		// longer.
		begun, late := time.Now(), wait(2*time.Second)
		for late > 300*time.Millisecond && time.Since(begun) < 30*time.Second {
			late = wait(2 * time.Second)
		}
		require.Less(t, late, 300*time.Millisecond, "the quiet subscription was not replaced") // sooner than any poll
	})
}
