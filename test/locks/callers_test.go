package locks

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// waitsForItself requires that each acquisition of a name which the functions around hold is
// refused.
func waitsForItself(ctx context.Context, t *testing.T, l *sluice.Locker, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	never := func(context.Context) error { t.Error("called"); return nil }
	_, lock := l.Lock(ctx, name)
	_, fenced := l.Lock(ctx, name, sluice.WithFencing(), sluice.WithMaxWait(time.Second))
	_, lockAll := l.LockAll(ctx, []string{name + "0", name})
	for i, err := range []error{lock, fenced, lockAll, l.Do(ctx, name, never), l.DoAll(ctx, []string{name + "0", name}, never)} {
		require.ErrorIs(t, err, sluice.ErrInvalid, i)
		require.ErrorContains(t, err, strconv.Quote(name)+": ")
	}
	require.NoError(t, ctx.Err(), "it has waited")
	_, err := l.TryLock(ctx, name)
	require.ErrorIs(t, err, sluice.ErrLocked, "it does not wait")
	requireFree(t, l, name+"0")
}

// TestLocker_WaitsForNoLockOfItsOwnCaller: of a Do or DoAll around the call, also if other ones are
// between.
func TestLocker_WaitsForNoLockOfItsOwnCaller(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, name := s.Client(t), redistest.Name(t)
		l, other := systest.NewLocker(t, rdb), systest.NewLocker(t, rdb, sluice.WithLockPrefix("Lock:Other:"))
		require.NoError(t, l.Do(t.Context(), name, func(ctx context.Context) error {
			waitsForItself(ctx, t, l, name)
			waitsForItself(context.WithoutCancel(ctx), t, l, name)
			return l.Do(ctx, name+" b", func(ctx context.Context) error {
				waitsForItself(ctx, t, l, name)
				return other.Do(ctx, name, func(ctx context.Context) error { // another key, or another server
					waitsForItself(ctx, t, l, name)
					waitsForItself(ctx, t, l, name+" b")
					return l.Do(ctx, name, func(context.Context) error { return nil }, sluice.WithLockPrefix("Lock:Third:"))
				}, sluice.WithLockPrefix("Lock:Other:"))
			})
		}))
		require.NoError(t, l.DoAll(t.Context(), []string{name, name + " b"}, func(ctx context.Context) error {
			waitsForItself(ctx, t, l, name)
			waitsForItself(ctx, t, l, name+" b")
			return l.Do(ctx, name+" c", func(context.Context) error { return nil })
		}))
	})
}

// TestLocker_WaitsForALockThatMayComeFree: one that its function has given up or lost, that of
// another Locker, and permits.
func TestLocker_WaitsForALockThatMayComeFree(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, l, elsewhere := redistest.Name(t), systest.NewLocker(t, s.Client(t)), systest.NewLocker(t, s.Client(t))
		nothing := func(context.Context) error { return nil }
		var outlived context.Context
		require.ErrorIs(t, l.Do(t.Context(), name, func(ctx context.Context) error {
			outlived = ctx
			_, err := elsewhere.Lock(ctx, name, sluice.WithMaxWait(300*time.Millisecond))
			require.NotErrorIs(t, err, sluice.ErrInvalid, "that Locker does not know")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			ctx = context.WithoutCancel(ctx) // which ends with the lock
			require.NoError(t, sluice.LockFromContext(ctx, name).Unlock(ctx))
			require.NoError(t, l.Do(ctx, name, nothing))
			return nil
		}), sluice.ErrLost)
		require.NoError(t, l.Do(context.WithoutCancel(outlived), name, nothing))
		require.ErrorIs(t, l.Do(t.Context(), name, func(ctx context.Context) error {
			ctx = context.WithoutCancel(ctx)
			_, err := l.ForceUnlock(ctx, name)
			require.NoError(t, err)
			require.NoError(t, l.Do(ctx, name, nothing))
			return nil
		}), sluice.ErrLost)
		two := sluice.WithPermits(2)
		require.NoError(t, l.Do(t.Context(), name, func(ctx context.Context) error { return l.Do(ctx, name, nothing, two) }, two))
	})
}

// TestLocker_SaysWhyNoServerWasReached: beside the end of the caller's context, to the first in
// line and to those behind it.
func TestLocker_SaysWhyNoServerWasReached(t *testing.T) {
	t.Parallel()
	rdb := systest.Dial(t, redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1})
	l := systest.NewLocker(t, rdb)
	errs := make(chan error)
	for range 3 {
		go func() {
			_, err := l.Lock(systest.Within(t, 4*time.Second), "a") // a busy machine refuses a connection late
			errs <- err
		}()
	}
	for range 3 {
		err := <-errs
		require.ErrorIs(t, err, sluice.ErrUnavailable)
		require.True(t, errors.Is(err, context.DeadlineExceeded))
		require.ErrorContains(t, err, "connection refused")
	}
}

// TestLocker_FunctionsThatEndTheirGoroutineKeepNoLock: nor do those that panic. The context of the
// function ends.
func TestLocker_FunctionsThatEndTheirGoroutineKeepNoLock(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		for how, end := range map[string]func(){"exits": runtime.Goexit, "panics": func() { panic("in the function") }} {
			for _, all := range []bool{false, true} {
				var w witness
				name := redistest.Name(t)
				l := systest.NewLocker(t, s.Client(t), sluice.WithLockHooks(w.hooks()))
				var inside context.Context
				fn := func(ctx context.Context) error { inside = ctx; end(); return nil }
				over := make(chan any)
				go func() {
					defer func() { recovered := recover(); over <- recovered }()
					if all {
						_ = l.DoAll(t.Context(), []string{name}, fn)
					} else {
						_ = l.Do(t.Context(), name, fn)
					}
				}()
				require.Equal(t, how == "panics", <-over != nil)
				require.Error(t, inside.Err())
				require.Equal(t, "acquired released", w.told())
				requireFree(t, systest.NewLocker(t, s.Client(t)), name)
			}
		}
	})
}
