package locks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

func TestLocker_LocksAndUnlocks(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb)

		k, err := l.Lock(ctx, name)
		require.NoError(t, err)
		require.Equal(t, name, k.Name())
		require.True(t, k.Valid())
		require.Equal(t, k.Token(), rdb.Get(ctx, "Lock:"+name).Val())
		require.InDelta(t, 15000, rdb.PTTL(ctx, "Lock:"+name).Val().Milliseconds(), 1000)
		require.NoError(t, context.Cause(k.Context()))

		_, err = l.TryLock(ctx, name)
		require.ErrorIs(t, err, sluice.ErrLocked)

		require.NoError(t, k.Unlock(ctx))
		require.False(t, k.Valid())
		require.ErrorIs(t, context.Cause(k.Context()), context.Canceled)
		require.Zero(t, rdb.Exists(ctx, "Lock:"+name).Val())
		require.ErrorIs(t, k.Unlock(ctx), sluice.ErrNotHeld)

		k, err = l.TryLock(ctx, name)
		require.NoError(t, err)
		require.NoError(t, k.Unlock(ctx))
	})
}

func TestLocker_WaitsUntilTheContextEnds(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		l := systest.NewLocker(t, s.Client(t))
		_, err := l.Lock(t.Context(), name)
		require.NoError(t, err)

		start, lag := time.Now(), systest.Lag(t)
		_, err = l.Lock(systest.Within(t, 150*time.Millisecond), name)
		require.ErrorIs(t, err, sluice.ErrLocked)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.GreaterOrEqual(t, time.Since(start), 150*time.Millisecond)
		require.Less(t, time.Since(start), 400*time.Millisecond+10*lag())

		_, err = l.Lock(systest.Ended(), name)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, sluice.ErrLocked, "nothing was asked")
	})
}

// TestLocker_ReportsAHeldLockWheneverTheContextEnds: when the context ends while a
// waiter polls, or is about to, the error is ErrLocked as much as when it ends in between.
func TestLocker_ReportsAHeldLockWheneverTheContextEnds(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		rdb, faults := s.Faulty(t)
		holder := systest.NewLocker(t, s.Client(t))
		_, err := holder.Lock(t.Context(), name)
		require.NoError(t, err)
		for range 50 {
			// One of its own: what the one before releases in the background is not counted.
			l := systest.NewLocker(t, rdb, sluice.WithRetryInterval(time.Millisecond))
			ctx, cancel := context.WithCancel(t.Context())
			sent := faults.Scripts()
			go func() {
				defer cancel()
				// The first answer has come, and a second command is sent.
				assert.Eventually(t, func() bool { return faults.Scripts() >= sent+2 || ctx.Err() != nil }, 20*time.Second, time.Millisecond)
				time.Sleep(rand.N(5 * time.Millisecond)) // at any moment after that: there is no event that it would miss
			}()
			_, err := l.Lock(ctx, name)
			cancel()
			require.ErrorIs(t, err, sluice.ErrLocked)
			require.ErrorIs(t, err, context.Canceled)
			require.NoError(t, l.Close())
		}
	})
}

// TestLocker_GrantsALockToOneHolderAtATime has goroutines of several Lockers change what a
// lock guards, without any other protection: the race detector watches too.
func TestLocker_GrantsALockToOneHolderAtATime(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		const lockers, goroutines, rounds = 3, 4, 15
		name, count := redistest.Name(t), 0
		var inside atomic.Int32
		var wg sync.WaitGroup
		for range lockers {
			l := systest.NewLocker(t, s.Client(t))
			for range goroutines {
				wg.Go(func() {
					for range rounds {
						k, err := l.Lock(t.Context(), name)
						if err != nil {
							t.Error(err)
							return
						}
						if inside.Add(1) != 1 {
							t.Error("two holders")
						}
						count++
						inside.Add(-1)
						if err := k.Unlock(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
		require.Equal(t, lockers*goroutines*rounds, count)
	})
}

func TestLocker_DoHoldsTheLockForTheFunction(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb, sluice.WithTTL(5*time.Second))
		key, boom := "Lock:"+name, errors.New("boom")

		require.NoError(t, l.Do(ctx, name, func(ctx context.Context) error {
			require.Equal(t, int64(1), rdb.Exists(ctx, key).Val())
			return ctx.Err()
		}))
		require.Zero(t, rdb.Exists(ctx, key).Val())

		err := l.Do(ctx, name, func(context.Context) error { return boom })
		require.Equal(t, boom, err)

		require.Panics(t, func() { _ = l.Do(ctx, name, func(context.Context) error { panic("at the disco") }) })
		require.Zero(t, rdb.Exists(ctx, key).Val(), "a panic kept the lock")

		err = l.Do(ctx, name, func(ctx context.Context) error {
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), sluice.ErrLost)
			return boom
		}, sluice.WithMaxHold(300*time.Millisecond))
		require.ErrorIs(t, err, boom)
		require.ErrorIs(t, err, sluice.ErrLost)

		err = l.Do(ctx, name, func(context.Context) error { return rdb.Del(ctx, key).Err() })
		require.ErrorIs(t, err, sluice.ErrLost)

		inner, cancel := context.WithCancel(ctx)
		require.NoError(t, l.Do(inner, name, func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return nil
		}))
		require.Eventually(t, func() bool { return rdb.Exists(ctx, key).Val() == 0 }, 30*time.Second, time.Millisecond, "a cancelled context kept the lock")
	})
}

// TestLocker_DoShowsItsLock: the function finds the lock of each Do around it by its name.
func TestLocker_DoShowsItsLock(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, a, b := t.Context(), s.Client(t), redistest.Name(t), redistest.Name(t)
		l, prefixed := systest.NewLocker(t, rdb, sluice.WithFencing()), systest.NewLocker(t, rdb, sluice.WithLockPrefix(redistest.Name(t)))
		require.Nil(t, sluice.LockFromContext(ctx, a))
		var outer *sluice.Lock
		require.NoError(t, l.Do(ctx, a, func(ctx context.Context) error {
			outer = sluice.LockFromContext(ctx, a)
			require.True(t, outer.Valid())
			require.Equal(t, a, outer.Name())
			require.Equal(t, outer.Token(), rdb.Get(ctx, "Lock:"+a).Val())
			require.Positive(t, outer.Fence())
			require.Nil(t, sluice.LockFromContext(ctx, b))
			require.Zero(t, sluice.LockFromContext(ctx, b).Fence(), "a nil lock can be asked")
			require.NoError(t, prefixed.Do(ctx, a, func(ctx context.Context) error {
				require.NotSame(t, outer, sluice.LockFromContext(ctx, a), "not the innermost")
				return nil
			}))
			return l.Do(ctx, b, func(ctx context.Context) error {
				inner := sluice.LockFromContext(ctx, b)
				require.Equal(t, b, inner.Name())
				require.Same(t, outer, sluice.LockFromContext(ctx, a))
				return inner.Extend(ctx, time.Minute)
			})
		}))
		require.False(t, outer.Valid())
		require.ErrorIs(t, outer.Unlock(ctx), sluice.ErrNotHeld)

		err := l.Do(ctx, a, func(ctx context.Context) error { return sluice.LockFromContext(ctx, a).Unlock(ctx) })
		require.ErrorIs(t, err, sluice.ErrLost, "it was not protected to its end")
	})
}

func TestLocker_InspectsAndForcesOpen(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb)
		info, err := l.Inspect(ctx, name)
		require.NoError(t, err)
		require.Equal(t, sluice.LockInfo{}, info)
		forced, err := l.ForceUnlock(ctx, name)
		require.NoError(t, err)
		require.False(t, forced)

		k, err := l.Lock(ctx, name)
		require.NoError(t, err)
		info, err = l.Inspect(ctx, name)
		require.NoError(t, err)
		require.True(t, info.Held)
		require.InDelta(t, 15, info.TTL.Seconds(), 1)

		forced, err = l.ForceUnlock(ctx, name)
		require.NoError(t, err)
		require.True(t, forced)
		require.ErrorIs(t, k.Unlock(ctx), sluice.ErrNotHeld)

		require.NoError(t, rdb.Set(ctx, "Lock:"+name, "php", 0).Err())
		info, err = l.Inspect(ctx, name)
		require.NoError(t, err)
		require.True(t, info.Held)
		require.Negative(t, info.TTL)
	})
}

// TestLocker_TakesAKeyWithoutTTLAfterOneTTL imitates a PHP client that died between SETNX
// and EXPIRE.
func TestLocker_TakesAKeyWithoutTTLAfterOneTTL(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb, sluice.WithTTL(2*time.Second))

		require.NoError(t, rdb.SetNX(ctx, "Lock:"+name, "php", 0).Err())
		before, lag := time.Now(), systest.LagOf(t, s.Client(t))
		_, err := l.TryLock(ctx, name)
		require.ErrorIs(t, err, sluice.ErrLocked, "it was stolen")
		require.Equal(t, "php", rdb.Get(ctx, "Lock:"+name).Val())
		seen := time.Now()
		k, err := l.Lock(ctx, name)
		require.NoError(t, err)
		require.Greater(t, time.Since(before), 1990*time.Millisecond, "it was stolen")
		require.Less(t, time.Since(seen), 2150*time.Millisecond+10*lag())
		require.NoError(t, k.Unlock(ctx))
	})
}

// TestLocker_UnlockAllReleasesEveryLock on a server that knows none of the scripts: what each of
// the three pipelines has is refused, and sent again, once in full and else by its digest.
func TestLocker_UnlockAllReleasesEveryLock(t *testing.T) {
	t.Parallel()
	for _, auto := range []bool{false, true} {
		s := *redistest.Start(t) // the test's own: others count their scripts
		s.AutoPipeline = auto
		ctx, rdb := t.Context(), s.Client(t)
		l := systest.NewLocker(t, rdb, sluice.WithTTL(time.Hour))
		var locks []*sluice.Lock
		for i := range 600 {
			k, err := l.Lock(ctx, strconv.Itoa(i))
			require.NoError(t, err)
			locks = append(locks, k)
		}
		require.NoError(t, rdb.ScriptFlush(ctx).Err())
		require.NoError(t, rdb.ConfigResetStat(ctx).Err())
		require.NoError(t, l.UnlockAll(ctx))
		require.LessOrEqual(t, redistest.Calls(t, rdb, "eval"), 3)
		for _, k := range locks {
			require.False(t, k.Valid())
		}
		require.Zero(t, rdb.DBSize(ctx).Val())
	}
}

// TestLocker_UnlockAllWithAnEndedContext is quick, and done in the end.
func TestLocker_UnlockAllWithAnEndedContext(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb, sluice.WithTTL(time.Hour))
		for i := range 10 {
			_, err := l.Lock(ctx, name+strconv.Itoa(i))
			require.NoError(t, err)
		}
		if err := l.UnlockAll(systest.Ended()); err != nil {
			require.ErrorIs(t, err, sluice.ErrUnknown)
		}
		for i := range 10 {
			requireReleased(t, rdb, name+strconv.Itoa(i))
		}
	})
}

// requireReleased waits until a lock's key is gone. That an error is no answer matters: it
// has the value of a key that is gone.
func requireReleased(t *testing.T, rdb redis.UniversalClient, name string) {
	t.Helper()
	require.Eventually(t, func() bool {
		n, err := rdb.Exists(t.Context(), "Lock:"+name).Result()
		return err == nil && n == 0
	}, 20*time.Second, 5*time.Millisecond, "the lock was not released")
}

// TestLocker_CloseEndsWaitersAndLocks: Close releases what is held, ends the waits, and
// leaves the client alone.
func TestLocker_CloseEndsWaitersAndLocks(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb, sluice.WithTTL(time.Hour))
		k, err := l.Lock(ctx, name)
		require.NoError(t, err)
		held := k.Context()
		waiting := make(chan error)
		go func() {
			_, err := l.Lock(context.Background(), name)
			waiting <- err
		}()
		require.Eventually(t, func() bool { return systest.Waiting(l) > 0 }, 20*time.Second, time.Millisecond)
		if err := l.Close(); err != nil { // it waits for a second at most
			require.ErrorIs(t, err, sluice.ErrUnknown)
		}
		require.ErrorIs(t, <-waiting, sluice.ErrClosed)
		require.ErrorIs(t, context.Cause(held), sluice.ErrClosed)
		requireReleased(t, rdb, name)
		_, err = l.Lock(ctx, name)
		require.ErrorIs(t, err, sluice.ErrClosed)
		require.NoError(t, l.Close())
		require.NoError(t, rdb.Ping(ctx).Err(), "the client is not the Locker's to close")
	})
}

// TestLocker_DropsForgottenLocks: a caller that lets its locks run out instead of releasing
// them must not make the Locker grow.
func TestLocker_DropsForgottenLocks(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb)
		defer done()
		for i := range 500 {
			_, err := l.Lock(t.Context(), strconv.Itoa(i), sluice.WithTTL(4*time.Millisecond))
			require.NoError(t, err)
			time.Sleep(time.Millisecond)
			all, _ := systest.Names(l)
			require.LessOrEqual(t, all, 100)
		}
	})
}

// TestLocker_NeedsNoGoroutinePerLock: a lock costs no goroutine, whether its Context was
// asked for or not, and after Close nothing is left.
func TestLocker_NeedsNoGoroutinePerLock(t *testing.T) {
	// Not parallel: it counts goroutines.
	s := redistest.Mini(t)
	rdb := s.Client(t)
	l, err := sluice.NewLocker(rdb)
	require.NoError(t, err)
	name := redistest.Name(t)
	for i := range 100 {
		k, err := l.Lock(t.Context(), name+strconv.Itoa(i))
		require.NoError(t, err)
		_ = k.Context()
	}
	systest.RequireNoGoroutines(t)

	_, err = l.Lock(systest.Within(t, 50*time.Millisecond), name+"0")
	require.ErrorIs(t, err, sluice.ErrLocked)
	require.NoError(t, l.Close())
	systest.RequireNoGoroutines(t)
}

// TestLocker_CloseReleasesWhatIsBeingAcquired: what lands after Close does not stay either.
func TestLocker_CloseReleasesWhatIsBeingAcquired(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, bounded := range []bool{false, true} {
			name, rdb, lag := redistest.Name(t), s.Client(t), systest.LagOf(t, s.Client(t))
			faulty, faults := s.Faulty(t)
			l := systest.NewLocker(t, faulty, sluice.WithTTL(time.Minute))
			systest.Warm(t, l, name)
			faults.Stall() // else the reply might come before Close
			t.Cleanup(faults.Resume)
			ctx, end := context.WithCancel(t.Context())
			result := make(chan error, 1)
			go func() { _, err := l.Lock(ctx, name); result <- err }()
			require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "Lock:"+name).Val() == 1 },
				10*time.Second, time.Millisecond)
			if bounded {
				time.AfterFunc(50*time.Millisecond, end)
			}
			time.AfterFunc(200*time.Millisecond, faults.Resume)
			if began, err := time.Now(), l.Close(); err != nil { // it waits for a second at most
				require.ErrorIs(t, err, sluice.ErrUnknown)
				require.Greater(t, min(time.Since(began), 5*lag()), 900*time.Millisecond)
			}
			require.Error(t, <-result)
			require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "Lock:"+name).Val() == 0 },
				10*time.Second, 5*time.Millisecond)
			end()
		}
	})
}

// TestLocker_CloseBesideOperations is for the race detector.
func TestLocker_CloseBesideOperations(t *testing.T) {
	redistest.NotShort(t)
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	for range 20 {
		l, err := sluice.NewLocker(rdb)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for g := range 4 {
			name := redistest.Name(t) + fmt.Sprint(g)
			k, err := l.Lock(t.Context(), name)
			require.NoError(t, err)
			wg.Go(func() {
				for range 5 {
					_, _ = k.TTL(t.Context())
					_, _ = l.TryLock(t.Context(), name)
				}
			})
		}
		if err := l.Close(); err != nil {
			require.ErrorIs(t, err, sluice.ErrUnknown) // a release took longer than the second that Close waits
		}
		wg.Wait()
	}
}

// TestLocker_ToleratesAnyForeignTTL: a foreign holder's TTL may be longer than a
// time.Duration.
func TestLocker_ToleratesAnyForeignTTL(t *testing.T) {
	t.Parallel()
	ctx, rdb, name := t.Context(), redistest.Redis(t).Client(t), redistest.Name(t)
	l := systest.NewLocker(t, rdb)
	for _, ttl := range []string{"10000000000000", "288230376151711745"} { // the latter is 2^58 + 1
		require.NoError(t, rdb.Do(ctx, "SET", "Lock:"+name, "x", "PX", ttl).Err())
		for range 5 {
			_, err := l.TryLock(ctx, name)
			require.ErrorIs(t, err, sluice.ErrLocked)
		}
		info, err := l.Inspect(ctx, name)
		require.NoError(t, err)
		require.Greater(t, info.TTL, 50*365*24*time.Hour)
	}
}

// TestLocker_UnlockAllBesideHandOvers: a lock may be handed over to a caller, and be found
// by UnlockAll, before that caller's goroutine has run again. The race detector is what
// this test is for.
func TestLocker_UnlockAllBesideHandOvers(t *testing.T) {
	t.Parallel()
	// A server of its own: the shared one is kept busy by other tests' scripts.
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	l, name := systest.NewLocker(t, rdb), "a"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var taken, all atomic.Int64
	var callers sync.WaitGroup
	took := make(chan struct{}, 1) // else UnlockAll would spin, and keep the callers from a processor
	for range 8 {
		callers.Go(func() {
			for ctx.Err() == nil {
				k, err := l.Lock(ctx, name)
				if err != nil {
					continue
				}
				taken.Add(1)
				select {
				case took <- struct{}{}:
				default:
				}
				_ = k.Unlock(ctx)
			}
		})
	}
	callers.Go(func() {
		for ctx.Err() == nil {
			_ = l.UnlockAll(ctx)
			all.Add(1)
			select {
			case <-took:
			case <-ctx.Done():
			}
		}
	})
	require.Eventually(t, func() bool { return taken.Load() > 500 && all.Load() > 25 }, 2*time.Minute, 5*time.Millisecond)
	cancel()
	callers.Wait()
}
