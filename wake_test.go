package sluice_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// TestReleasedBeforeSubscribed: the lock is released after the waiter's look and
// before its subscription stands. No notification can come of it; the waiter has
// to look again when the subscription is confirmed.
func TestReleasedBeforeSubscribed(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		rdb, faults := s.Faulty(t)
		require.NoError(t, rdb.Ping(t.Context()).Err()) // has a connection for the look
		holder, waiter := newLocker(t, s.Client(t)), newLocker(t, rdb, sluice.WithRetryInterval(time.Minute))
		k, err := holder.Lock(t.Context(), name)
		require.NoError(t, err)
		// Now every reply takes 150ms: the look's comes at 150, that to the
		// subscription's handshake at 300.
		faults.Delay(150 * time.Millisecond)
		start := time.Now()
		time.AfterFunc(220*time.Millisecond, func() {
			faults.Delay(50 * time.Millisecond)
			_ = k.Unlock(t.Context())
		})
		_, err = waiter.Lock(t.Context(), name)
		require.NoError(t, err)
		require.Less(t, time.Since(start), 3*time.Second)
		faults.Delay(0)
	})
}

// TestReleasedBeforeJoined: likewise where the subscription stands already, from an
// earlier wait, and the notification comes before there is anybody to hear it.
func TestReleasedBeforeJoined(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		rdb, faults := s.Faulty(t)
		holder, waiter := newLocker(t, s.Client(t)), newLocker(t, rdb, sluice.WithRetryInterval(time.Minute))
		k, err := holder.Lock(t.Context(), name)
		require.NoError(t, err)
		time.AfterFunc(50*time.Millisecond, func() { _ = k.Unlock(t.Context()) })
		waited, err := waiter.Lock(t.Context(), name)
		require.NoError(t, err)
		require.NoError(t, waited.Unlock(t.Context()))
		k, err = holder.Lock(t.Context(), name)
		require.NoError(t, err)

		// The replies to the waiter's two looks take 150ms each. The second look is
		// carried out at 150, and the lock released, and that told, before 300.
		faults.Delay(150 * time.Millisecond)
		start := time.Now()
		time.AfterFunc(200*time.Millisecond, func() {
			faults.Delay(0)
			_ = k.Unlock(t.Context())
		})
		_, err = waiter.Lock(t.Context(), name)
		require.NoError(t, err)
		require.Less(t, time.Since(start), 3*time.Second)
	})
}

// TestHalfOpenConnection: a pub/sub connection that went quiet without an error
// costs an interval, is found out by that, and replaced.
func TestHalfOpenConnection(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		rdb, faults := s.Faulty(t)
		holder, waiter := newLocker(t, s.Client(t)), newLocker(t, rdb)
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
		require.Less(t, wait(2*time.Second), 300*time.Millisecond)
		faults.HalfOpen()
		require.Less(t, wait(400*time.Millisecond), 600*time.Millisecond)
		time.Sleep(2500 * time.Millisecond) // the time after which an unanswered PING is a fault
		require.Less(t, wait(2*time.Second), 300*time.Millisecond, "nobody noticed")
	})
}
