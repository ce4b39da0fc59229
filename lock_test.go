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
	"github.com/sluice-go/sluice/internal/systest/operations"
)

func TestLock_ComparesTokens(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb)
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
		require.False(t, k.Valid())
		require.ErrorIs(t, context.Cause(k.Context()), sluice.ErrLost)
		require.ErrorIs(t, k.Unlock(ctx), sluice.ErrNotHeld)
		require.Equal(t, other, rdb.Get(ctx, "Lock:"+name).Val(), "a foreign lock was released")
	})
}

func TestLock_ExtendsAndNeverShortens(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb, sluice.WithTTL(5*time.Second))
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

func TestLock_ContextEndsWithTheDeadline(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb, sluice.WithTTL(4*time.Second)) // longer than the reply takes on a busy machine
		k, err := l.Lock(ctx, name)
		require.NoError(t, err)
		<-k.Context().Done()
		require.ErrorIs(t, context.Cause(k.Context()), sluice.ErrLost)
		require.False(t, k.Valid())
		require.ErrorIs(t, k.Extend(ctx, time.Second), sluice.ErrNotHeld, "the end of Context is final")
	})
}

func TestLock_DeadlineKeepsAMarginToTheTTL(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb)
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

func TestLock_ExtendMovesTheDeadline(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(10*time.Second))
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

// TestLock_ReleaseThatComesAfterTheEndIsNoLoss: the lock was valid when Unlock was called,
// and the release reaches the server when the key has expired. What the lock guarded was
// protected to its end.
func TestLock_ReleaseThatComesAfterTheEndIsNoLoss(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		faults := redistest.NewFaults(systest.BubbleDialer(m))
		rdb := systest.BubbleClient(t, faults.Dial)
		defer func() { require.NoError(t, rdb.Close()) }()
		l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(100*time.Millisecond))
		defer done()
		systest.Warm(t, l, "a")
		// late waits until shortly before the deadline, and has what is sent from then on
		// carried out after the key has expired.
		late := func(deadline time.Time) {
			faults.StallRequests()
			time.Sleep(time.Until(deadline) - time.Millisecond)
			time.AfterFunc(20*time.Millisecond, func() {
				require.False(t, m.Exists("Lock:a"))
				faults.Resume()
			})
		}
		k, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		late(k.Deadline())
		require.NoError(t, k.Unlock(t.Context()))

		require.NoError(t, l.Do(t.Context(), "a", func(context.Context) error {
			late(time.Now().Add(97 * time.Millisecond)) // it cannot be renewed either
			return nil
		}))

		k, err = l.Lock(t.Context(), "a")
		require.NoError(t, err)
		m.Del("Lock:a")
		require.ErrorIs(t, k.Unlock(t.Context()), sluice.ErrNotHeld, "it was lost before")
	})
}

// TestLock_ReleasedByItsLockerIsNotLost: after UnlockAll and Close a holder can tell that
// its lock was given back, and not lost.
func TestLock_ReleasedByItsLockerIsNotLost(t *testing.T) {
	for name, release := range map[string]func(ctx context.Context, l *sluice.Locker) error{
		"UnlockAll": func(ctx context.Context, l *sluice.Locker) error { return l.UnlockAll(ctx) },
		"Close":     func(_ context.Context, l *sluice.Locker) error { return l.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			systest.Each(t, func(t *testing.T, s *redistest.Server) {
				ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
				l := systest.NewLocker(t, rdb)
				k, err := l.Lock(ctx, name)
				require.NoError(t, err)
				lost, err := l.Lock(ctx, name+"lost")
				require.NoError(t, err)
				require.NoError(t, rdb.Del(ctx, "Lock:"+name+"lost").Err())
				begun, over := make(chan struct{}), make(chan error, 1)
				go func() {
					over <- l.Do(ctx, name+"do", func(ctx context.Context) error {
						close(begun)
						<-ctx.Done()
						if !errors.Is(context.Cause(ctx), sluice.ErrClosed) {
							t.Errorf("the function's context ended with %v", context.Cause(ctx))
						}
						return nil
					})
				}()
				<-begun
				held := k.Context()
				require.NoError(t, release(ctx, l))
				require.ErrorIs(t, context.Cause(held), sluice.ErrClosed)
				require.False(t, k.Valid())
				require.ErrorIs(t, <-over, sluice.ErrClosed)
				for _, op := range operations.OfLocks() {
					if op.Type() == "Lock" {
						_, err := op.Call(ctx, &operations.Fixture{Lock: k})
						require.ErrorIs(t, err, sluice.ErrClosed, op.Name)
						require.NotErrorIs(t, err, sluice.ErrNotHeld, op.Name)
						require.NotErrorIs(t, err, sluice.ErrLost, op.Name)
					}
				}
				require.ErrorIs(t, lost.Unlock(ctx), sluice.ErrNotHeld, "the server said that it was lost")
			})
		})
	}
}

// TestLock_OfNoLockerIsNotHeld: nil, as LockFromContext may return it, and the zero value.
func TestLock_OfNoLockerIsNotHeld(t *testing.T) {
	t.Parallel()
	for _, k := range []*sluice.Lock{nil, {}} {
		require.False(t, k.Valid())
		require.Zero(t, k.Deadline())
		require.ErrorIs(t, context.Cause(k.Context()), sluice.ErrNotHeld)
		require.Equal(t, "", k.Name()+k.Token())
		require.Zero(t, k.Fence())
		_, ttl := k.TTL(t.Context())
		_, detach := k.Detach(t.Context())
		for op, err := range map[string]error{"unlock": k.Unlock(t.Context()), "extend": k.Extend(t.Context(), time.Hour), "ttl": ttl, "detach": detach} {
			require.EqualError(t, err, "sluice: "+op+": invalid argument: Lock not made by a Locker")
			require.ErrorIs(t, err, sluice.ErrInvalid)
		}
	}
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
