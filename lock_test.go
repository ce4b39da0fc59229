package sluice_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

func TestLockAndUnlock(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := newLocker(t, rdb)

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

func TestLockWaitsUntilItsContextEnds(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		l := newLocker(t, s.Client(t))
		_, err := l.Lock(t.Context(), name)
		require.NoError(t, err)

		start := time.Now()
		_, err = l.Lock(within(t, 150*time.Millisecond), name)
		require.ErrorIs(t, err, sluice.ErrLocked)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.InDelta(t, 150, time.Since(start).Milliseconds(), 50)

		_, err = l.Lock(ended(), name)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, sluice.ErrLocked, "nothing was asked")
	})
}

// TestBusyIsAlwaysSaid: a context that ends while a waiter looks, or is about to,
// is as much a case of "somebody else holds it" as one that ends in between.
func TestBusyIsAlwaysSaid(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		l, holder := newLocker(t, s.Client(t), sluice.WithRetryInterval(time.Millisecond)), newLocker(t, s.Client(t))
		_, err := holder.Lock(t.Context(), name)
		require.NoError(t, err)
		_, err = l.Inspect(t.Context(), name) // a connection may take longer than the contexts below
		require.NoError(t, err)
		for range 50 {
			_, err := l.Lock(within(t, 20*time.Millisecond), name)
			if !errors.Is(err, sluice.ErrUnknown) { // a reply that took longer than the grace
				require.ErrorIs(t, err, sluice.ErrLocked)
			}
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
	})
}

// TestMutualExclusion has goroutines of several Lockers change what a lock
// guards, without any other protection: the race detector looks on too.
func TestMutualExclusion(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		const lockers, goroutines, rounds = 3, 4, 15
		name, count := redistest.Name(t), 0
		var inside atomic.Int32
		var wg sync.WaitGroup
		for range lockers {
			l := newLocker(t, s.Client(t))
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

func TestTokensAreCompared(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := newLocker(t, rdb)
		extended, err := l.Lock(ctx, name)
		require.NoError(t, err)
		require.NoError(t, rdb.Set(ctx, "Lock:"+name, "other", time.Minute).Err())
		require.ErrorIs(t, extended.Extend(ctx, time.Hour), sluice.ErrNotHeld)
		require.LessOrEqual(t, rdb.PTTL(ctx, "Lock:"+name).Val(), time.Minute, "a foreign lock was extended")
		require.NoError(t, rdb.Del(ctx, "Lock:"+name).Err())

		k, err := l.Lock(ctx, name)
		require.NoError(t, err)
		// A token that begins like ours is another one.
		other := k.Token() + "x"
		require.NoError(t, rdb.Set(ctx, "Lock:"+name, other, time.Minute).Err())
		_, err = k.TTL(ctx)
		require.ErrorIs(t, err, sluice.ErrNotHeld)
		require.ErrorIs(t, k.Unlock(ctx), sluice.ErrNotHeld)
		require.Equal(t, other, rdb.Get(ctx, "Lock:"+name).Val(), "a foreign lock was released")
	})
}

func TestExtend(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := newLocker(t, rdb, sluice.WithTTL(5*time.Second))
		k, err := l.Lock(ctx, name)
		require.NoError(t, err)
		before := k.Deadline()

		require.NoError(t, k.Extend(ctx, time.Minute))
		require.WithinDuration(t, before.Add(55*time.Second), k.Deadline(), 2*time.Second)
		ttl, err := k.TTL(ctx)
		require.NoError(t, err)
		require.InDelta(t, 60, ttl.Seconds(), 2)
		require.True(t, k.Deadline().Before(time.Now().Add(ttl)), "the holder believes in it longer than the server")

		// Never shorter, on neither side.
		before = k.Deadline()
		require.NoError(t, k.Extend(ctx, 3*time.Second))
		require.InDelta(t, 60, rdb.PTTL(ctx, "Lock:"+name).Val().Seconds(), 2)
		require.Equal(t, before, k.Deadline())

		held := k.Context()
		require.NoError(t, rdb.Del(ctx, "Lock:"+name).Err())
		require.ErrorIs(t, k.Extend(ctx, time.Minute), sluice.ErrNotHeld)
		require.ErrorIs(t, context.Cause(held), sluice.ErrLost)
		require.False(t, k.Valid())
		require.Zero(t, rdb.Exists(ctx, "Lock:"+name).Val(), "a lost lock was made again")
	})
}

func TestContextEndsBeforeTheKey(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := newLocker(t, rdb, sluice.WithTTL(300*time.Millisecond))
		k, err := l.Lock(ctx, name)
		require.NoError(t, err)
		<-k.Context().Done()
		require.ErrorIs(t, context.Cause(k.Context()), sluice.ErrLost)
		require.False(t, k.Valid())
		require.ErrorIs(t, k.Extend(ctx, time.Second), sluice.ErrNotHeld, "what its holder was told is final")
	})
}

func TestDo(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := newLocker(t, rdb, sluice.WithTTL(200*time.Millisecond))
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
		require.Zero(t, rdb.Exists(ctx, key).Val(), "a cancelled context kept the lock")
	})
}

func TestInspectAndForceUnlock(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := newLocker(t, rdb)
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

// TestKeyWithoutTTL imitates a PHP client that died between SETNX and EXPIRE.
func TestKeyWithoutTTL(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := newLocker(t, rdb, sluice.WithTTL(400*time.Millisecond))

		require.NoError(t, rdb.SetNX(ctx, "Lock:"+name, "php", 0).Err())
		_, err := l.TryLock(ctx, name)
		require.ErrorIs(t, err, sluice.ErrLocked, "it was stolen")
		require.Equal(t, "php", rdb.Get(ctx, "Lock:"+name).Val())
		start := time.Now()
		k, err := l.Lock(ctx, name)
		require.NoError(t, err)
		require.InDelta(t, 400, time.Since(start).Milliseconds(), 150)
		require.NoError(t, k.Unlock(ctx))
	})
}

func TestUnlockAllAndClose(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := newLocker(t, rdb)
		// A server that knows none of the scripts: NOSCRIPT, in a pipeline.
		require.NoError(t, rdb.ScriptFlush(ctx).Err())
		var locks []*sluice.Lock
		for i := range 600 {
			k, err := l.Lock(ctx, name+strconv.Itoa(i))
			require.NoError(t, err)
			locks = append(locks, k)
		}
		require.NoError(t, rdb.ScriptFlush(ctx).Err())
		require.NoError(t, l.UnlockAll(ctx))
		for _, k := range locks {
			require.False(t, k.Valid())
			require.Zero(t, rdb.Exists(ctx, "Lock:"+k.Name()).Val())
		}

		// With a context that has ended it is quick, and done in the end.
		_, err := l.Lock(ctx, name)
		require.NoError(t, err)
		if err := l.UnlockAll(ended()); err != nil {
			require.ErrorIs(t, err, sluice.ErrUnknown)
		}
		require.Eventually(t, func() bool { return rdb.Exists(ctx, "Lock:"+name).Val() == 0 },
			5*time.Second, time.Millisecond)

		k, err := l.Lock(ctx, name)
		require.NoError(t, err)
		held := k.Context()
		waiting := make(chan error)
		go func() {
			_, err := l.Lock(context.Background(), name)
			waiting <- err
		}()
		time.Sleep(20 * time.Millisecond) // so that Close finds a waiter, most times
		require.NoError(t, l.Close())
		require.ErrorIs(t, <-waiting, sluice.ErrClosed)
		require.ErrorIs(t, context.Cause(held), sluice.ErrClosed)
		require.Zero(t, rdb.Exists(ctx, "Lock:"+name).Val())
		_, err = l.Lock(ctx, name)
		require.ErrorIs(t, err, sluice.ErrClosed)
		require.NoError(t, l.Close())
		require.NoError(t, rdb.Ping(ctx).Err(), "the client is not ours to close")
	})
}

// TestForgottenLocksAreDropped: a caller that lets its locks run out instead of
// releasing them must not make the Locker grow.
func TestForgottenLocksAreDropped(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	l := newLocker(t, s.Client(t))
	name := redistest.Name(t)
	for i := range 5000 {
		_, err := l.Lock(t.Context(), name+strconv.Itoa(i), sluice.WithTTL(4*time.Millisecond))
		if err != nil {
			require.ErrorIs(t, err, sluice.ErrLost) // a slow machine, a short TTL
		}
	}
	all, _ := sluice.Lines(l)
	require.LessOrEqual(t, all, 1000)
}

// TestNoGoroutine: a lock costs no goroutine, whether its Context was asked for
// or not, and after Close nothing is left.
func TestNoGoroutine(t *testing.T) {
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
	requireNoGoroutines(t)

	_, err = l.Lock(within(t, 50*time.Millisecond), name+"0")
	require.ErrorIs(t, err, sluice.ErrLocked)
	require.NoError(t, l.Close())
	requireNoGoroutines(t)
}

// requireNoGoroutines waits until none of the library's is left.
func requireNoGoroutines(t *testing.T) {
	t.Helper()
	var ours []string
	require.Eventually(t, func() bool {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		ours = slices.DeleteFunc(strings.Split(string(stacks), "\n\n"), func(stack string) bool {
			return !strings.Contains(stack, "github.com/sluice-go/sluice.")
		})
		return len(ours) == 0
	}, 7*time.Second, 5*time.Millisecond, "%s", &ours)
}
