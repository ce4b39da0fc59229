package locks

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestLock_HandsOverWithoutACommand: the next waiter gets the lock without a command, with
// a full TTL that the server's key covers, and the old handle can do nothing any more.
func TestLock_HandsOverWithoutACommand(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		l, name, ctx := systest.NewLocker(t, rdb), redistest.Name(t), t.Context()
		systest.Warm(t, l, name)
		for handed := 0; handed < 3; { // a slow machine may miss the time for it
			first, err := l.Lock(ctx, name, sluice.WithTTL(3*time.Second))
			require.NoError(t, err)
			next := make(chan *sluice.Lock)
			go func() {
				k, err := l.Lock(ctx, name, sluice.WithTTL(3*time.Second))
				if err != nil {
					t.Error(err)
				}
				next <- k
			}()
			require.Eventually(t, func() bool { return systest.Waiting(l) > 0 }, 20*time.Second, time.Millisecond)
			scripts := faults.Scripts()
			before := time.Now()
			require.NoError(t, first.Unlock(ctx))
			second := <-next
			if faults.Scripts() == scripts {
				handed++
			}
			require.True(t, second.Valid())
			require.False(t, first.Valid())
			require.GreaterOrEqual(t, second.Deadline().Sub(before), 3*time.Second-40*time.Millisecond, "not its full TTL")
			ttl, err := second.TTL(ctx)
			require.NoError(t, err)
			require.Less(t, time.Until(second.Deadline()), ttl)

			require.ErrorIs(t, first.Unlock(ctx), sluice.ErrNotHeld)
			require.ErrorIs(t, first.Extend(ctx, time.Hour), sluice.ErrNotHeld)
			_, err = first.TTL(ctx)
			require.ErrorIs(t, err, sluice.ErrNotHeld)
			require.ErrorIs(t, context.Cause(first.Context()), context.Canceled)
			require.NoError(t, second.Context().Err())
			require.NoError(t, second.Unlock(ctx))
			require.Zero(t, rdb.Exists(ctx, "Lock:"+name).Val())
		}
	})
}

// TestLock_KeepsTheNextHolderFromALateExtension: an extension that is answered when its
// lock has been handed over must not take it from the next holder.
func TestLock_KeepsTheNextHolderFromALateExtension(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		l, name, ctx := systest.NewLocker(t, rdb), redistest.Name(t), t.Context()
		systest.Warm(t, l, name)
		first, err := l.Lock(ctx, name)
		require.NoError(t, err)
		next := make(chan *sluice.Lock, 1)
		go func() {
			k, err := l.Lock(ctx, name)
			if err != nil {
				t.Error(err)
			}
			next <- k
		}()
		require.Eventually(t, func() bool { return systest.Waiting(l) > 0 }, 20*time.Second, time.Millisecond)
		faults.Delay(100 * time.Millisecond)
		sent := faults.Scripts()
		extended := make(chan error, 1)
		go func() { extended <- first.Extend(ctx, time.Minute) }()
		// On its way, and still in time for a hand-over.
		require.Eventually(t, func() bool { return faults.Scripts() > sent }, 20*time.Second, time.Millisecond)
		require.NoError(t, first.Unlock(ctx))
		second := <-next
		if err := <-extended; err != nil {
			require.ErrorIs(t, err, sluice.ErrNotHeld)
		}
		faults.Delay(0)
		// For a release in the background, if there is one.
		require.Never(t, func() bool { return rdb.Get(ctx, "Lock:"+name).Val() != second.Token() }, 50*time.Millisecond, 5*time.Millisecond)
		require.True(t, second.Valid())
		_, err = second.TTL(ctx)
		require.NoError(t, err, "the next holder's lock was released")
		require.NoError(t, second.Unlock(ctx))
	})
}

// TestLock_ExtensionUnderWayIsNotForTheSuccessor: what an extension asked for that is
// carried out after Unlock must not become the TTL of the caller that takes the lock over: a
// crash of that one would block the others for so long.
func TestLock_ExtensionUnderWayIsNotForTheSuccessor(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		const ttl = 3 * time.Second
		rdb, faults := s.Faulty(t)
		clean, ctx := s.Client(t), t.Context()
		l, name := systest.NewLocker(t, rdb, sluice.WithTTL(ttl)), redistest.Name(t)
		systest.Warm(t, l, name)
		for range 10 {
			first, err := l.Lock(ctx, name)
			require.NoError(t, err)
			next := make(chan *sluice.Lock, 1)
			go func() {
				k, err := l.Lock(ctx, name)
				if err != nil {
					t.Error(err)
				}
				next <- k
			}()
			require.Eventually(t, func() bool { return systest.Waiting(l) > 0 }, 20*time.Second, time.Millisecond)
			faults.StallRequests()
			sent := faults.Scripts()
			extended, released := make(chan error, 1), make(chan error, 1)
			go func() { extended <- first.Extend(ctx, time.Hour) }()
			require.Eventually(t, func() bool { return faults.Scripts() > sent }, 20*time.Second, time.Millisecond, "not on its way")
			go func() { released <- first.Unlock(ctx) }()
			require.Eventually(t, func() bool { return !first.Valid() }, 20*time.Second, time.Millisecond, "Unlock has not begun")
			// It could hand the lock over, and can do nothing else.
			require.Never(t, func() bool { return len(next) > 0 }, 2*time.Millisecond, 200*time.Microsecond)
			faults.Resume()
			require.NoError(t, <-released)
			if err := <-extended; err != nil {
				require.ErrorIs(t, err, sluice.ErrNotHeld)
			}
			second := <-next
			left, err := clean.PTTL(ctx, "Lock:"+name).Result()
			require.NoError(t, err)
			// By the longest window, which a busy machine may need.
			require.LessOrEqual(t, left, ttl+202*time.Millisecond, "the next holder's key lives for the extension's TTL")
			require.NoError(t, second.Unlock(ctx))
		}
	})
}

// TestLock_IsNeverHandedOverAfterItsDeadline: a holder that was too slow does not hand
// the lock over; the next waiter asks Redis.
func TestLock_IsNeverHandedOverAfterItsDeadline(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(6*time.Millisecond))
		defer done()
		k, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		got := make(chan *sluice.Lock)
		go func() {
			k, err := l.Lock(t.Context(), "a", sluice.WithTTL(time.Millisecond))
			require.NoError(t, err)
			got <- k
		}()
		time.Sleep(time.Until(k.Deadline())) // within the hand-over window
		m.Set("Lock:a", "foreign")           // as it would be after a failover
		m.SetTTL("Lock:a", time.Minute)
		_ = k.Unlock(t.Context())
		select {
		case <-got:
			require.FailNow(t, "a lost lock was handed over")
		case <-time.After(time.Second):
		}
		m.Del("Lock:a")
		require.NoError(t, (<-got).Unlock(t.Context()))
	})
}

// TestLock_ForcedOpenIsNotHandedOver: the next waiter acquires it anew, at once; the others
// wait for that one.
func TestLock_ForcedOpenIsNotHandedOver(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb)
		defer done()
		other, done := systest.BubbleLocker(t, rdb)
		defer done()
		k, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		next := waitFor(t, l, "a")
		forced, err := l.ForceUnlock(t.Context(), "a")
		require.NoError(t, err)
		require.True(t, forced)
		require.ErrorIs(t, k.Unlock(t.Context()), sluice.ErrNotHeld)
		second := <-next
		require.NotEqual(t, k.Token(), second.Token())
		held, err := m.Get("Lock:a")
		require.NoError(t, err)
		require.Equal(t, second.Token(), held)
		_, err = other.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, sluice.ErrLocked)
		require.NoError(t, second.Unlock(t.Context()))
	})
}
