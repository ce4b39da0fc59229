package locks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestLock_IsRenewed holds a lock of ten seconds for an hour. SLUICE_TEST_SCALE=24 makes it
// a day.
func TestLock_IsRenewed(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(10*time.Second), sluice.WithAutoRenew())
		defer done()
		k, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		held := k.Context()
		for range 60 * systest.Scale() {
			time.Sleep(time.Minute)
			require.True(t, k.Valid())
			require.NoError(t, held.Err())
			require.Greater(t, m.TTL("Lock:a"), 6*time.Second)
		}
		require.NoError(t, k.Unlock(t.Context()))
		before := m.CommandCount()
		time.Sleep(time.Hour)
		require.Equal(t, before, m.CommandCount(), "a renewal after Unlock")
	})
}

// TestLocker_DoRenewsTheLock: the function may run for longer than the TTL.
func TestLocker_DoRenewsTheLock(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(time.Second))
		defer done()
		require.NoError(t, l.Do(t.Context(), "a", func(ctx context.Context) error {
			time.Sleep(2 * time.Minute)
			return ctx.Err()
		}))
	})
}

// TestLock_LearnsOfItsLossAtTheNextRenewal: the holder learns of it at the next renewal,
// and the next waiter goes on.
func TestLock_LearnsOfItsLossAtTheNextRenewal(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(9*time.Second))
		defer done()
		k, err := l.Lock(t.Context(), "a", sluice.WithAutoRenew())
		require.NoError(t, err)
		next := make(chan *sluice.Lock, 1)
		go func() {
			k, err := l.Lock(t.Context(), "a")
			require.NoError(t, err)
			next <- k
		}()
		time.Sleep(time.Minute)
		m.Del("Lock:a")
		start := time.Now()
		<-k.Context().Done()
		require.LessOrEqual(t, time.Since(start), 3*time.Second)
		require.ErrorIs(t, context.Cause(k.Context()), sluice.ErrLost)
		second := <-next
		require.ErrorIs(t, k.Unlock(t.Context()), sluice.ErrNotHeld)
		require.NoError(t, second.Unlock(t.Context()))
	})
}

func TestLock_MaxHoldEndsTheRenewals(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(10*time.Second), sluice.WithAutoRenew())
		defer done()
		start := time.Now()
		k, err := l.Lock(t.Context(), "a", sluice.WithMaxHold(time.Minute))
		require.NoError(t, err)
		<-k.Context().Done()
		require.Equal(t, time.Minute, time.Since(start))
		require.ErrorIs(t, context.Cause(k.Context()), sluice.ErrLost)
		require.False(t, k.Valid())
		require.ErrorIs(t, k.Extend(t.Context(), time.Minute), sluice.ErrNotHeld)
		// And the TTL runs out.
		time.Sleep(11 * time.Second)
		require.False(t, m.Exists("Lock:a"))
	})
}

// TestLocker_RenewsManyLocksInFewPipelines: a batch takes all that is due soon.
func TestLocker_RenewsManyLocksInFewPipelines(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		const n, ttl, held = 100, 6 * time.Second, time.Minute
		var sent systest.Pipelines
		rdb.AddHook(&sent)
		l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(ttl), sluice.WithAutoRenew())
		defer done()
		var locks []*sluice.Lock
		for i := range n {
			k, err := l.Lock(t.Context(), fmt.Sprint("a", i))
			require.NoError(t, err)
			locks = append(locks, k)
			time.Sleep(time.Millisecond)
		}
		sent.Reset()
		time.Sleep(held)
		const renewals = int64(held / (ttl / 3))
		require.InDelta(t, renewals, sent.Sent.Load(), 3, "pipelines")
		require.InDelta(t, n*renewals, sent.Commands.Load(), 2*n)
		for _, k := range locks {
			require.True(t, k.Valid())
			require.NoError(t, k.Unlock(t.Context()))
		}
	})
}

// renewed returns a lock that was renewed at least once. On a busy machine one may be lost before.
func renewed(t *testing.T, l *sluice.Locker, name string) *sluice.Lock {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		k, err := l.Lock(t.Context(), name)
		if err != nil {
			require.ErrorIs(t, err, sluice.ErrLost)
			continue
		}
		first := k.Deadline()
		require.Eventually(t, func() bool { return !k.Valid() || k.Deadline().After(first) }, 20*time.Second, 5*time.Millisecond)
		if k.Valid() {
			return k
		}
	}
	require.FailNow(t, "no lock was ever renewed")
	return nil
}

// TestLock_ContextEndsBeforeTheKeyOnAStalledConnection: whatever hangs, the deadline lies
// before the end of the server's key, and Context ends with it.
func TestLock_ContextEndsBeforeTheKeyOnAStalledConnection(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		clean, name, lag := s.Client(t), redistest.Name(t), systest.Lag(t)
		l := systest.NewLocker(t, rdb, sluice.WithTTL(900*time.Millisecond), sluice.WithAutoRenew())
		k := renewed(t, l, name)
		faults.Stall()
		select {
		case <-k.Context().Done():
		case <-time.After(20 * time.Second):
			require.FailNow(t, "Context did not end")
		}
		late := time.Since(k.Deadline())
		require.Eventually(t, func() bool {
			return clean.Exists(t.Context(), "Lock:"+name).Val() == 0
		}, 20*time.Second, time.Millisecond)
		gone := time.Now() // at the latest
		faults.Resume()
		require.ErrorIs(t, context.Cause(k.Context()), sluice.ErrLost)
		require.True(t, k.Deadline().Before(gone), "the key was gone before its holder knew")
		require.Less(t, late, 20*time.Millisecond+10*lag(), "Context did not end with the deadline")
	})
}

// TestLock_IsNotRenewedAfterUnlock: a lock that is renewed all the time is not renewed any
// more when Unlock has returned. A renewal that got no reply within its batch's 20ms may
// still be on its way then, as on a machine that is late: such rounds do not count. On the
// fake clock there are none: see TestLock_RenewalsEndWithUnlock.
func TestLock_IsNotRenewedAfterUnlock(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, r := s.Client(t), systest.NewRenewals(t)
		rdb.AddHook(r)
		l, name := systest.NewLocker(t, rdb, sluice.WithTTL(60*time.Millisecond), sluice.WithAutoRenew()), redistest.Name(t)
		clean, late := 0, 0
		for i, start := 0, time.Now(); clean < 30 && time.Since(start) < 30*time.Second; i++ {
			begun := time.Now()
			k, err := l.Lock(t.Context(), name)
			if errors.Is(err, sluice.ErrLost) {
				late++
				continue
			}
			require.NoError(t, err)
			time.Sleep(time.Duration(18+i%5) * time.Millisecond) // into the first renewal, at another moment of it each time
			released := k.Unlock(t.Context())
			if released != nil || time.Since(begun) > 35*time.Millisecond {
				late++
				continue
			}
			r.Released(k.Token())
			require.Never(t, func() bool { _, after := r.Counts(); return after > 0 }, 25*time.Millisecond, 5*time.Millisecond) // the next would be due
			clean++
		}
		sent, after := r.Counts()
		t.Logf("%d locks, %d renewals; %d locks for which the machine was late", clean, sent, late)
		require.Zero(t, after)
		require.NotZero(t, sent)
	})
}

// TestLocker_CloseEndsTheRenewer: the renewer has nothing to do for a long time, and does
// not sleep until then.
func TestLocker_CloseEndsTheRenewer(t *testing.T) {
	redistest.NotShort(t)
	// Not parallel: it counts the process's goroutines.
	systest.RequireNoGoroutines(t) // of tests before
	lag := systest.Lag(t)
	l, err := sluice.NewLocker(redistest.Redis(t).Client(t))
	require.NoError(t, err)
	_, err = l.Lock(t.Context(), redistest.Name(t), sluice.WithTTL(time.Hour), sluice.WithAutoRenew())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		stacks := systest.Goroutines()
		return len(stacks) == 1 && strings.Contains(stacks[0], "[select")
	}, 10*time.Second, 5*time.Millisecond, "the renewer does not sleep")
	start := time.Now()
	require.NoError(t, l.Close())
	require.Less(t, time.Since(start), 500*time.Millisecond+10*lag())
	systest.RequireNoGoroutines(t)
}
