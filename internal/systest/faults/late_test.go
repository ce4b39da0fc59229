package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestLateCopy_NeverShortensALock: a copy of an earlier acquisition or extension that
// arrives after a longer extension must not take that back, or there would be two
// holders.
func TestLateCopy_NeverShortensALock(t *testing.T) {
	for _, what := range []string{"first try", "acquire", "extend"} {
		t.Run(what, func(t *testing.T) {
			systest.Each(t, func(t *testing.T, s *redistest.Server) {
				name := redistest.Name(t)
				rdb, faults := s.Faulty(t)
				clean := s.Client(t)
				l, other := systest.NewLocker(t, rdb, sluice.WithTTL(10*time.Second)), systest.NewLocker(t, clean)
				systest.Warm(t, l, name)
				if what != "extend" {
					faults.HoldRequest(1)
				}
				lock := l.Lock
				if what == "acquire" {
					lock = l.TryLock
				}
				k, err := lock(t.Context(), name)
				require.NoError(t, err)
				if what == "extend" {
					faults.HoldRequest(1)
					require.NoError(t, k.Extend(t.Context(), 20*time.Second))
				}
				require.NoError(t, k.Extend(t.Context(), time.Hour))
				require.Equal(t, 1, faults.Deliver())
				left, err := clean.PTTL(t.Context(), "Lock:"+name).Result()
				require.NoError(t, err)
				require.Greater(t, left, 50*time.Minute, "the copy took the extension back")
				_, err = other.TryLock(t.Context(), name)
				require.ErrorIs(t, err, sluice.ErrLocked, "a second holder")
				require.True(t, k.Valid())
			})
		})
	}
}

// TestLateCopy_OfARefusedAcquisitionIsReleased: the network delays the first attempt,
// the repeat finds the lock held, and the caller leaves. When the server carries out the
// first attempt, the lock must not stay taken without a holder.
func TestLateCopy_OfARefusedAcquisitionIsReleased(t *testing.T) {
	for _, what := range []string{"try", "lock"} {
		t.Run(what, func(t *testing.T) {
			systest.Each(t, func(t *testing.T, s *redistest.Server) {
				name, rdb := redistest.Name(t), s.Client(t)
				faulty, faults := s.Faulty(t)
				l, other := systest.NewLocker(t, faulty, sluice.WithTTL(time.Minute)), systest.NewLocker(t, rdb)
				systest.Warm(t, l, name)
				k, err := other.Lock(t.Context(), name)
				require.NoError(t, err)
				faults.HoldRequest(1)
				if what == "try" {
					_, err = l.TryLock(t.Context(), name)
					require.ErrorIs(t, err, sluice.ErrLocked)
				} else {
					_, err = l.Lock(systest.Within(t, 1500*time.Millisecond), name)
					require.ErrorIs(t, err, sluice.ErrLocked)
				}
				require.NoError(t, k.Unlock(t.Context()))
				require.Equal(t, 1, faults.Deliver())
				require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "Lock:"+name).Val() == 0 },
					10*time.Second, 5*time.Millisecond, "held without a holder")
			})
		})
	}
}

// TestLateCopy_ArrivesAfterTheRelease: the first attempt is held up, its repeat takes the
// lock, and the lock is released. When the first attempt is carried out after that, it must
// not keep the lock.
func TestLateCopy_ArrivesAfterTheRelease(t *testing.T) {
	for name, release := range map[string]func(ctx context.Context, l *sluice.Locker, k *sluice.Lock) error{
		"Unlock":    func(ctx context.Context, _ *sluice.Locker, k *sluice.Lock) error { return k.Unlock(ctx) },
		"UnlockAll": func(ctx context.Context, l *sluice.Locker, _ *sluice.Lock) error { return l.UnlockAll(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			systest.Each(t, func(t *testing.T, s *redistest.Server) {
				name, rdb := redistest.Name(t), s.Client(t)
				faulty, faults := s.Faulty(t)
				l := systest.NewLocker(t, faulty, sluice.WithTTL(time.Minute))
				systest.Warm(t, l, name)
				faults.HoldRequest(1)
				k, err := l.TryLock(t.Context(), name)
				require.NoError(t, err)
				require.NoError(t, release(t.Context(), l, k))
				require.Equal(t, 1, faults.Deliver())
				require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "Lock:"+name).Val() == 0 },
					10*time.Second, 5*time.Millisecond, "held without a holder")
			})
		})
	}
}

// TestLateCopy_AfterDetachTakesNothing: the first attempt is held up, its repeat takes the lock,
// which goes to another process, and is released there. The first attempt must not take it for good
// after that; an extension without a reply takes nothing at all.
func TestLateCopy_AfterDetachTakesNothing(t *testing.T) {
	for kind, opts := range map[string][]sluice.LockOption{
		"plain": nil, "fenced": {sluice.WithFencing()}, "permit": {sluice.WithPermits(2)}, "fenced permit": {sluice.WithPermits(2), sluice.WithFencing()},
	} {
		t.Run(kind, func(t *testing.T) {
			systest.Each(t, func(t *testing.T, s *redistest.Server) {
				ctx, name, rdb := t.Context(), redistest.Name(t), s.Client(t)
				faulty, faults := s.Faulty(t)
				opts := append(opts, sluice.WithTTL(10*time.Minute))
				l, other := systest.NewLocker(t, faulty, opts...), systest.NewLocker(t, rdb, opts...)
				systest.Warm(t, l, name)
				faults.HoldRequest(1)
				k, err := l.TryLock(ctx, name)
				require.NoError(t, err)
				faults.HoldRequest(1) // two are held back now
				require.NoError(t, k.Extend(ctx, time.Minute))
				token, err := k.Detach(ctx)
				require.NoError(t, err)
				adopted, err := other.Adopt(ctx, name, token)
				require.NoError(t, err)
				require.NoError(t, adopted.Unlock(ctx))
				require.Equal(t, 2, faults.Deliver())
				require.Eventually(t, func() bool { return rdb.Exists(ctx, "Lock:"+name).Val() == 0 },
					10*time.Second, 5*time.Millisecond, "held without a holder")
			})
		})
	}
}

// TestLateCopy_LeavesAnAdoptedLockAlone: whatever the process that has detached it has sent arrives
// while the other one holds the lock. That stays the holder, with its fence, and its TTL becomes no
// shorter.
func TestLateCopy_LeavesAnAdoptedLockAlone(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, name, rdb := t.Context(), redistest.Name(t), s.Client(t)
		faulty, faults := s.Faulty(t)
		l, other := systest.NewLocker(t, faulty, sluice.WithFencing()), systest.NewLocker(t, rdb, sluice.WithFencing(), sluice.WithTTL(time.Hour))
		systest.Warm(t, l, name)
		faults.HoldRequest(1)
		k, err := l.TryLock(ctx, name)
		require.NoError(t, err)
		faults.HoldRequest(1)
		require.NoError(t, k.Extend(ctx, time.Minute))
		token, err := k.Detach(ctx)
		require.NoError(t, err)
		adopted, err := other.Adopt(ctx, name, token)
		require.NoError(t, err)
		require.Equal(t, 2, faults.Deliver())
		require.NoError(t, l.Close()) // it releases once more what may have come late
		require.Equal(t, token, rdb.Get(ctx, "Lock:"+name).Val())
		require.Greater(t, rdb.PTTL(ctx, "Lock:"+name).Val(), 59*time.Minute)
		require.NoError(t, adopted.Extend(ctx, time.Hour))
		require.NoError(t, adopted.Unlock(ctx))
		next, err := other.Lock(ctx, name)
		require.NoError(t, err)
		require.Greater(t, next.Fence(), adopted.Fence())
		require.NoError(t, next.Unlock(ctx))
	})
}

// TestLateCopy_OfALostLockIsReleased: a copy of the acquisition arrives when the
// lock has been lost, and its holder knows. The lock must not stay taken without a holder.
func TestLateCopy_OfALostLockIsReleased(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, rdb := redistest.Name(t), s.Client(t)
		faulty, faults := s.Faulty(t)
		l := systest.NewLocker(t, faulty, sluice.WithTTL(time.Minute))
		systest.Warm(t, l, name)
		faults.HoldRequest(1)
		k, err := l.TryLock(t.Context(), name)
		require.NoError(t, err)
		require.NoError(t, rdb.Del(t.Context(), "Lock:"+name).Err())
		require.ErrorIs(t, k.Extend(t.Context(), time.Minute), sluice.ErrNotHeld)
		require.Equal(t, 1, faults.Deliver())
		require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "Lock:"+name).Val() == 0 },
			10*time.Second, 5*time.Millisecond, "held without a holder")
	})
}

// TestLocker_ReleasesALateAcquisition: a lock that was acquired behind its caller's back is
// released, even if the first release is lost.
func TestLocker_ReleasesALateAcquisition(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		faulty, faults := s.Faulty(t)
		l, rdb := systest.NewLocker(t, faulty), s.Client(t)
		k, err := l.Lock(t.Context(), name) // now the server knows the scripts
		require.NoError(t, err)
		require.NoError(t, k.Unlock(t.Context()))
		before := faults.Scripts()
		faults.StallFrom(1)
		faults.DropRequest(2)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		result := make(chan error, 1)
		go func() { _, err := l.Lock(ctx, name); result <- err }()
		require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "Lock:"+name).Val() == 1 }, 20*time.Second, time.Millisecond)
		lag, start := systest.Lag(t), time.Now()
		cancel()
		err = <-result
		require.Less(t, time.Since(start), 50*time.Millisecond+10*lag())
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, sluice.ErrUnknown)
		require.NotErrorIs(t, err, sluice.ErrLocked)
		faults.Resume()
		require.Eventually(t, func() bool { return faults.Scripts() >= before+3 }, 20*time.Second, time.Millisecond, "the release was not lost")
		require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "Lock:"+name).Val() == 0 },
			10*time.Second, 5*time.Millisecond, "an acquisition stayed behind")
	})
}

// TestLocker_ReportsAReplyAfterTheDeadline: a lock that is over before its holder hears of
// it is an error, and is released.
func TestLocker_ReportsAReplyAfterTheDeadline(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		faulty, faults := s.Faulty(t)
		l := systest.NewLocker(t, faulty, sluice.WithTTL(60*time.Millisecond))
		require.NoError(t, faulty.Ping(t.Context()).Err())
		faults.Delay(100 * time.Millisecond)
		k, err := l.TryLock(context.Background(), name)
		require.Nil(t, k)
		require.ErrorIs(t, err, sluice.ErrLost)
	})
}

// TestLateCopy_UndoesNoStock: a total that was set, or ended, without an error is not set late by an
// earlier call's request.
func TestLateCopy_UndoesNoStock(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, name := t.Context(), redistest.Name(t)
		rdb, faults := s.Faulty(t)
		q := systest.NewQueue(t, rdb)
		for _, late := range []func() error{
			func() error { return q.SetStock(ctx, name, 100) },
			func() error { return q.DeleteStock(ctx, name) },
		} {
			require.NoError(t, q.SetStock(ctx, name, 10))
			faults.HoldRequest(1)
			require.ErrorIs(t, late(), sluice.ErrUnknown, "it may come later than the next one")
			require.NoError(t, q.SetStock(ctx, name, 10))
			require.Equal(t, 1, faults.Deliver(), "one, and no repeat of it")
		}
	})
}
