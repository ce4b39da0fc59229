package sluice_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// waitsForItself requires that each acquisition of a name which the functions around hold is refused.
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
		require.ErrorContains(t, err, name+": ")
	}
	require.NoError(t, ctx.Err(), "it has waited")
	_, err := l.TryLock(ctx, name)
	require.ErrorIs(t, err, sluice.ErrLocked, "it does not wait")
	requireFree(t, l, name+"0")
}

// TestLocker_WaitsForNoLockOfItsOwnCaller: of a Do or DoAll around the call, also if other ones are between.
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

// TestLocker_WaitsForALockThatMayComeFree: one that its function has given up or lost, that of another Locker, and permits.
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

// late is a hook of a client that takes its time with each command.
type late struct {
	redis.Hook
	by time.Duration
}

func (h late) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h late) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h late) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		time.Sleep(h.by)
		return next(ctx, cmd)
	}
}

// TestLock_SaysWhichTimeHasPassed when the reply to its acquisition comes too late.
func TestLock_SaysWhichTimeHasPassed(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		rdb.AddHook(late{by: 20 * time.Millisecond})
		l, done := systest.BubbleLocker(t, rdb)
		defer done()
		for limit, opts := range map[string][]sluice.LockOption{
			"WithMaxHold": {sluice.WithMaxHold(time.Millisecond)},
			"the TTL":     {sluice.WithMaxHold(time.Minute), sluice.WithTTL(10 * time.Millisecond)},
		} {
			_, err := l.Lock(t.Context(), "a", opts...)
			require.ErrorIs(t, err, sluice.ErrLost)
			require.ErrorContains(t, err, "the reply took longer than "+limit)
			time.Sleep(time.Minute) // until the janitor has released it
		}
	})
}

// TestLocker_SaysWhyNoServerWasReached: beside the end of the caller's context, to the first in line and to those behind it.
func TestLocker_SaysWhyNoServerWasReached(t *testing.T) {
	t.Parallel()
	rdb := systest.Dial(t, redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1})
	l := systest.NewLocker(t, rdb)
	errs := make(chan error)
	for range 3 {
		go func() {
			_, err := l.Lock(systest.Within(t, time.Second), "a")
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
