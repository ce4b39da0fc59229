package sluice_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// lockKinds are the kinds of locks, each with the kind that takes its name after it was forced open.
var lockKinds = map[string]struct{ opts, other []sluice.LockOption }{
	"plain":          {nil, []sluice.LockOption{sluice.WithPermits(2)}},
	"fenced":         {[]sluice.LockOption{sluice.WithFencing()}, []sluice.LockOption{sluice.WithPermits(2), sluice.WithFencing()}},
	"permits":        {[]sluice.LockOption{sluice.WithPermits(2)}, nil},
	"fenced permits": {[]sluice.LockOption{sluice.WithPermits(2), sluice.WithFencing()}, []sluice.LockOption{sluice.WithFencing()}},
}

// overtaken is a Locker whose lock was forced open elsewhere, and taken as the other kind.
type overtaken struct {
	*testing.T
	locker         *sluice.Locker
	name           string
	opts           []sluice.LockOption // of the kind that the lock had
	force          func()
	elsewhere      *sluice.Locker
	lost, released atomic.Int32
	unanswered     bool // Close had no answer
}

func (o *overtaken) lock(opts ...sluice.LockOption) *sluice.Lock {
	o.Helper()
	k, err := o.locker.Lock(o.Context(), o.name, append(opts, o.opts...)...)
	require.NoError(o, err)
	return k
}

// TestLock_TakenAsTheOtherKindIsLost: the server's answer that the key is of another type proves that our token does not
// hold it, in each operation.
func TestLock_TakenAsTheOtherKindIsLost(t *testing.T) {
	paths := map[string]func(o *overtaken){
		"extend": func(o *overtaken) {
			k := o.lock()
			o.force()
			require.ErrorIs(o, k.Extend(o.Context(), time.Minute), sluice.ErrNotHeld)
			require.False(o, k.Valid())
			require.ErrorIs(o, context.Cause(k.Context()), sluice.ErrLost)
		},
		"ttl": func(o *overtaken) {
			k := o.lock()
			o.force()
			_, err := k.TTL(o.Context())
			require.ErrorIs(o, err, sluice.ErrNotHeld)
			require.False(o, k.Valid())
		},
		"unlock": func(o *overtaken) {
			k := o.lock()
			o.force()
			require.ErrorIs(o, k.Unlock(o.Context()), sluice.ErrNotHeld)
		},
		"renewal": func(o *overtaken) {
			k := o.lock(sluice.WithAutoRenew(), sluice.WithTTL(4*time.Second))
			o.force()
			<-k.Context().Done()
			require.ErrorIs(o, context.Cause(k.Context()), sluice.ErrLost)
			require.True(o, time.Now().Before(k.Deadline()), "at once, and not at its deadline")
		},
		"inspection for a waiter": func(o *overtaken) {
			k := o.lock()
			o.force()
			_, err := o.locker.Lock(o.Context(), o.name, append(o.opts, sluice.WithRetryInterval(10*time.Millisecond))...)
			require.ErrorIs(o, err, sluice.ErrInvalid)
			require.NotErrorIs(o, k.Unlock(o.Context()), sluice.ErrCorrupt)
		},
		"unlock all": func(o *overtaken) {
			k := o.lock()
			o.force()
			require.NoError(o, o.locker.UnlockAll(o.Context()))
			require.ErrorIs(o, k.Unlock(o.Context()), sluice.ErrNotHeld)
		},
		"close": func(o *overtaken) {
			k := o.lock()
			o.force()
			if err := o.locker.Close(); err != nil { // on a busy machine: no answer within its second
				require.ErrorIs(o, err, sluice.ErrUnknown)
				require.NotErrorIs(o, err, sluice.ErrCorrupt)
				o.unanswered = true
			}
			require.ErrorIs(o, k.Unlock(o.Context()), sluice.ErrNotHeld)
		},
		"set": func(o *overtaken) {
			s, err := o.locker.LockAll(o.Context(), []string{o.name}, o.opts...)
			require.NoError(o, err)
			o.force()
			require.ErrorIs(o, s.Unlock(o.Context()), sluice.ErrNotHeld)
		},
		"do": func(o *overtaken) {
			require.ErrorIs(o, o.locker.Do(o.Context(), o.name, func(context.Context) error { o.force(); return nil }, o.opts...), sluice.ErrLost)
		},
		"do all": func(o *overtaken) {
			require.ErrorIs(o, o.locker.DoAll(o.Context(), []string{o.name}, func(context.Context) error { o.force(); return nil }, o.opts...), sluice.ErrLost)
		},
		"adopt": func(o *overtaken) {
			k := o.lock()
			o.force()
			_, err := o.elsewhere.Adopt(o.Context(), o.name, k.Token(), o.opts...)
			require.ErrorIs(o, err, sluice.ErrNotHeld)
			require.ErrorIs(o, k.Unlock(o.Context()), sluice.ErrNotHeld)
		},
	}
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		for kind, kinds := range lockKinds {
			for path, run := range paths {
				t.Run(kind+", "+path, func(t *testing.T) {
					t.Parallel()
					o := &overtaken{T: t, name: redistest.Name(t), opts: kinds.opts, elsewhere: systest.NewLocker(t, s.Client(t))}
					o.locker = systest.NewLocker(t, s.Client(t), sluice.WithLockHooks(sluice.Hooks{
						LockLost:     func(sluice.LockLost) { o.lost.Add(1) },
						LockReleased: func(sluice.LockReleased) { o.released.Add(1) },
					}))
					var later *sluice.Lock
					o.force = func() {
						forced, err := o.elsewhere.ForceUnlock(t.Context(), o.name)
						require.NoError(t, err)
						require.True(t, forced)
						later, err = o.elsewhere.TryLock(t.Context(), o.name, kinds.other...)
						require.NoError(t, err)
					}
					if run(o); o.unanswered {
						return
					}
					require.Eventually(t, func() bool { return o.lost.Load() == 1 }, 5*time.Second, time.Millisecond, "the hook LockLost")
					require.Zero(t, o.released.Load(), "the hook LockReleased")
					require.True(t, later.Valid())
					require.NoError(t, later.Unlock(t.Context()), "the later holder's lock stays")
				})
			}
		}
	})
}

// TestLock_BothKindsOfOneNameAreNoCorruption: while callers use a name plainly and with permits, look at it, and force it
// open, each of them learns what is true: never that the key is not the library's.
func TestLock_BothKindsOfOneNameAreNoCorruption(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, rounds := redistest.Name(t), 300*systest.Scale()
		var callers sync.WaitGroup
		for range 2 {
			l := systest.NewLocker(t, s.Client(t), sluice.WithTTL(time.Minute))
			for kind := range lockKinds {
				callers.Go(func() {
					repeat(t, rounds, func() error {
						ttl := time.Minute
						if rand.N(2) == 0 && s.Name != "miniredis" { // where keys expire in the middle of a script
							ttl = time.Duration(1+rand.N(3)) * time.Millisecond // it ends by itself, before any script of the others
						}
						return useOnce(t.Context(), l, name, ttl, lockKinds[kind].opts)
					})
				})
			}
			callers.Go(func() {
				repeat(t, rounds, func() error { _, err := l.Inspect(t.Context(), name); return err })
			})
			callers.Go(func() {
				repeat(t, rounds/5, func() error { _, err := l.ForceUnlock(t.Context(), name); return err })
			})
		}
		callers.Wait()
	})
}

// repeat calls f so many times, or until it fails.
func repeat(t *testing.T, rounds int, f func() error) {
	for i := range rounds {
		if err := f(); err != nil {
			t.Errorf("round %d: %v", i, err)
			return
		}
	}
}

// useOnce takes a lock if it can, extends it, and releases it or lets it end.
func useOnce(ctx context.Context, l *sluice.Locker, name string, ttl time.Duration, opts []sluice.LockOption) error {
	k, err := l.TryLock(ctx, name, append(opts, sluice.WithTTL(ttl))...)
	if errors.Is(err, sluice.ErrLocked) || errors.Is(err, sluice.ErrInvalid) || errors.Is(err, sluice.ErrLost) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, err := range []error{k.Extend(ctx, ttl), k.Unlock(ctx)} {
		if err != nil && !errors.Is(err, sluice.ErrNotHeld) && !errors.Is(err, sluice.ErrUnknown) { // that is one without an answer until it ended
			return err
		}
	}
	return nil
}
