package sluice_test

import (
	"context"
	"fmt"
	"runtime"
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

// exits are hooks of locks each of which ends its goroutine.
var exits = sluice.LockHooks{
	WaitEnded:    func(context.Context, sluice.WaitEnded) { runtime.Goexit() },
	LockAcquired: func(context.Context, sluice.LockAcquired) { runtime.Goexit() },
	LockReleased: func(sluice.LockReleased) { runtime.Goexit() },
	LockLost:     func(sluice.LockLost) { runtime.Goexit() },
}

// TestHooks_ThatEndTheirGoroutineKeepNoLock: each call goes on, the locks are released, and the hooks behind are called.
func TestHooks_ThatEndTheirGoroutineKeepNoLock(t *testing.T) {
	calls := map[string]func(ctx context.Context, l *sluice.Locker, name string) error{
		"do": func(ctx context.Context, l *sluice.Locker, name string) error {
			return l.Do(ctx, name, func(context.Context) error { return nil })
		},
		"do all": func(ctx context.Context, l *sluice.Locker, name string) error {
			return l.DoAll(ctx, []string{name}, func(context.Context) error { return nil })
		},
		"lock": func(ctx context.Context, l *sluice.Locker, name string) error {
			k, err := l.Lock(ctx, name, sluice.WithAutoRenew())
			if err != nil {
				return err
			}
			return k.Unlock(ctx)
		},
		"lock all": func(ctx context.Context, l *sluice.Locker, name string) error {
			s, err := l.LockAll(ctx, []string{name})
			if err != nil {
				return err
			}
			return s.Unlock(ctx)
		},
		"unlock all": func(ctx context.Context, l *sluice.Locker, name string) error {
			if _, err := l.TryLock(ctx, name, sluice.WithAutoRenew()); err != nil {
				return err
			}
			return l.UnlockAll(ctx)
		},
		"adopt": func(ctx context.Context, l *sluice.Locker, name string) error {
			k, err := l.Lock(ctx, name)
			if err != nil {
				return err
			}
			token, err := k.Detach(ctx)
			if err != nil {
				return err
			}
			if k, err = l.Adopt(ctx, name, token, sluice.WithAutoRenew()); err != nil {
				return err
			}
			return k.Unlock(ctx)
		},
		"close": func(ctx context.Context, l *sluice.Locker, name string) error {
			if _, err := l.LockAll(ctx, []string{name, name + "2", name + "3"}); err != nil {
				return err
			}
			return l.Close()
		},
	}
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		for what, call := range calls {
			var w witness
			name := redistest.Name(t)
			l := systest.NewLocker(t, s.Client(t), sluice.WithLockHooks(exits), sluice.WithLockHooks(w.hooks()))
			over := make(chan error, 1)
			go func() {
				err := fmt.Errorf("it has not returned")
				defer func() { over <- err }()
				err = call(t.Context(), l, name)
			}()
			require.NoError(t, <-over, what)
			requireFree(t, systest.NewLocker(t, s.Client(t)), name)
			told := w.told()
			require.Positive(t, strings.Count(told, "acquired"), what)
			require.Equal(t, strings.Count(told, "acquired"), strings.Count(told, "released"), what)
		}
	})
}

// TestHooks_ThatEndTheirGoroutineEndNoRenewal, and no inspection: of another lock, after a loss of which the renewer, or the
// inspector, has told.
func TestHooks_ThatEndTheirGoroutineEndNoRenewal(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(time.Second), sluice.WithLockHooks(exits))
		defer done()
		renewed, err := l.Lock(t.Context(), "renewed", sluice.WithAutoRenew())
		require.NoError(t, err)
		lost, err := l.Lock(t.Context(), "lost", sluice.WithAutoRenew())
		require.NoError(t, err)
		m.Del("Lock:lost")
		<-lost.Context().Done()
		for _, name := range []string{"a", "b", "c"} {
			_, err := l.Lock(t.Context(), name, sluice.WithTTL(time.Hour))
			require.NoError(t, err)
			m.Del("Lock:" + name)
			begun := time.Now()
			k, err := l.Lock(t.Context(), name, sluice.WithTTL(time.Minute))
			require.NoError(t, err)
			require.Less(t, time.Since(begun), time.Second)
			require.NoError(t, k.Unlock(t.Context()))
		}
		time.Sleep(time.Minute)
		require.True(t, renewed.Valid(), "the renewals have ended")
		require.NoError(t, renewed.Unlock(t.Context()))
	})
}

// TestLocker_FunctionsThatEndTheirGoroutineKeepNoLock: nor do those that panic. The context of the function ends.
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
