package locks

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// witness keeps what the hooks of locks are told.
type witness struct {
	mu       sync.Mutex // guards what follows
	acquired []sluice.LockAcquired
	released []sluice.LockReleased
	lost     []sluice.LockLost
	order    []string
}

func (w *witness) hooks() sluice.LockHooks {
	return sluice.LockHooks{
		LockAcquired: func(_ context.Context, i sluice.LockAcquired) {
			w.note("acquired", func() { w.acquired = append(w.acquired, i) })
		},
		LockReleased: func(i sluice.LockReleased) {
			w.note("released", func() { w.released = append(w.released, i) })
		},
		LockLost: func(i sluice.LockLost) {
			w.note("lost", func() { w.lost = append(w.lost, i) })
		},
	}
}

func (w *witness) note(what string, keep func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.order = append(w.order, what)
	keep()
}

// told returns what the hooks were told since the last call, in order.
func (w *witness) told() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.order = nil }()
	return strings.Join(w.order, " ")
}

// await waits until the hooks were told so much: a loss is noticed in the background.
func (w *witness) await(t *testing.T, want string) {
	t.Helper()
	var told string
	require.Eventually(t, func() bool {
		told = strings.TrimSpace(told + " " + w.told())
		return len(told) >= len(want)
	}, time.Minute, time.Millisecond)
	require.Equal(t, want, told)
}

// TestHooks_TellOfEachReleasedLockOnce: in whichever way it is taken and given up.
func TestHooks_TellOfEachReleasedLockOnce(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		var w witness
		l := systest.NewLocker(t, rdb, sluice.WithLockHooks(w.hooks()), sluice.WithOwner("host 1"))
		k, err := l.Lock(ctx, name)
		require.NoError(t, err)
		require.Equal(t, "acquired", w.told())
		_, err = l.TryLock(ctx, name)
		require.ErrorIs(t, err, sluice.ErrLocked)
		require.Empty(t, w.told(), "a caller without the lock")
		require.NoError(t, k.Unlock(ctx))
		require.Equal(t, "released", w.told())
		require.ErrorIs(t, k.Unlock(ctx), sluice.ErrNotHeld)
		require.ErrorIs(t, k.Extend(ctx, time.Second), sluice.ErrNotHeld)
		require.Empty(t, w.told(), "the lock was released before")

		require.NoError(t, l.Do(ctx, name, func(context.Context) error {
			require.Equal(t, "acquired", w.told())
			return nil
		}))
		require.Equal(t, "released", w.told())
		require.Panics(t, func() { _ = l.Do(ctx, name, func(context.Context) error { panic("in fn") }) })
		require.Equal(t, "acquired released", w.told())
		require.ErrorIs(t, l.Do(ctx, name, func(ctx context.Context) error {
			return sluice.LockFromContext(ctx, name).Unlock(ctx)
		}), sluice.ErrLost)
		require.Equal(t, "acquired released", w.told(), "the function released the lock")

		k, err = l.Lock(ctx, name)
		require.NoError(t, err)
		require.NoError(t, l.UnlockAll(ctx))
		require.ErrorIs(t, k.Unlock(ctx), sluice.ErrClosed)
		require.Equal(t, "acquired released", w.told())
		for _, i := range w.acquired {
			require.Equal(t, "host 1", i.Owner)
			require.Equal(t, name, i.Name)
			require.False(t, i.HandedOver)
			require.Positive(t, i.Waited)
		}
		for _, i := range w.released {
			require.Equal(t, name, i.Name)
			require.False(t, i.HandedOver)
			require.Positive(t, i.Held)
		}
	})
}

// TestHooks_TellOfSetsPermitsAndAdoption: each lock of a set, each permit and each handle is one
// lock, and what fails is none. (What tells of each operation that succeeds is in the table of
// operations.)
func TestHooks_TellOfSetsPermitsAndAdoption(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		var w, other witness
		l := systest.NewLocker(t, rdb, sluice.WithLockHooks(w.hooks()))
		adopter := systest.NewLocker(t, rdb, sluice.WithLockHooks(other.hooks()))

		k, err := l.Lock(ctx, name+"2")
		require.NoError(t, err)
		_, err = l.LockAll(ctx, []string{name, name + "2"}, sluice.WithMaxWait(time.Second))
		require.ErrorIs(t, err, sluice.ErrLocked)
		require.NoError(t, k.Unlock(ctx))
		require.Equal(t, "acquired acquired released released", w.told(), "the set has taken one and given it back")

		permit, err := l.Lock(ctx, name, sluice.WithPermits(2))
		require.NoError(t, err)
		token, err := permit.Detach(ctx)
		require.NoError(t, err)
		require.Equal(t, "acquired released", w.told())
		adopted, err := adopter.Adopt(ctx, name, token, sluice.WithPermits(2))
		require.NoError(t, err)
		require.Equal(t, "acquired", other.told())
		require.NoError(t, adopted.Unlock(ctx))
		require.Equal(t, "released", other.told())
		_, err = adopter.Adopt(ctx, name, token, sluice.WithPermits(2))
		require.ErrorIs(t, err, sluice.ErrNotHeld)
		require.Empty(t, other.told(), "there was nothing to adopt")

		for _, i := range append(w.acquired, other.acquired...) {
			require.Contains(t, []string{name, name + "2"}, i.Name)
			require.False(t, i.HandedOver)
		}
	})
}

// TestHooks_TellOfEachLostLockOnce: in whichever way the loss is noticed, and never of a release.
func TestHooks_TellOfEachLostLockOnce(t *testing.T) {
	for what, notice := range map[string]func(t *testing.T, l *sluice.Locker, k *sluice.Lock){
		"by Unlock": func(t *testing.T, _ *sluice.Locker, k *sluice.Lock) {
			require.ErrorIs(t, k.Unlock(t.Context()), sluice.ErrNotHeld)
		},
		"by Extend": func(t *testing.T, _ *sluice.Locker, k *sluice.Lock) {
			require.ErrorIs(t, k.Extend(t.Context(), time.Hour), sluice.ErrNotHeld)
		},
		"by a renewal": func(_ *testing.T, _ *sluice.Locker, k *sluice.Lock) { <-k.Context().Done() },
		"by UnlockAll": func(t *testing.T, l *sluice.Locker, _ *sluice.Lock) { require.NoError(t, l.UnlockAll(t.Context())) },
		"by Close":     func(t *testing.T, l *sluice.Locker, _ *sluice.Lock) { require.NoError(t, l.Close()) },
		"by the inspection for a waiter": func(t *testing.T, l *sluice.Locker, k *sluice.Lock) {
			next := <-waitFor(t, l, k.Name())
			require.NoError(t, next.Unlock(t.Context()))
		},
	} {
		t.Run(what, func(t *testing.T) {
			systest.Each(t, func(t *testing.T, s *redistest.Server) {
				ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
				var w, other witness
				l := systest.NewLocker(t, rdb, sluice.WithRetryInterval(20*time.Millisecond), sluice.WithLockHooks(other.hooks()))
				k, err := l.Lock(ctx, name, sluice.WithTTL(3*time.Second), sluice.WithAutoRenew(), sluice.WithLockHooks(w.hooks()))
				require.NoError(t, err)
				require.NoError(t, rdb.Del(ctx, "Lock:"+name).Err())
				notice(t, l, k)
				w.await(t, "acquired lost")
				require.Error(t, k.Unlock(ctx))
				require.Error(t, k.Extend(ctx, time.Second))
				require.NoError(t, l.Close())
				require.Empty(t, w.told(), "of a loss that was told of before")
				require.Equal(t, name, w.lost[0].Name)
				require.Positive(t, w.lost[0].Held)
				told := other.told() // of the next holder too, whose acquisition may be told of first
				require.True(t, strings.HasPrefix(told, "acquired"), told)
				require.Equal(t, 1, strings.Count(told, "lost"), "the Locker's hooks")
			})
		})
	}
}

// TestHooks_TellOfALockThatIsForcedOpen: at once where the Locker does it itself.
func TestHooks_TellOfALockThatIsForcedOpen(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		var w witness
		l := systest.NewLocker(t, rdb, sluice.WithLockHooks(w.hooks()))
		k, err := l.Lock(ctx, name)
		require.NoError(t, err)
		_, err = l.ForceUnlock(ctx, name)
		require.NoError(t, err)
		require.Equal(t, "acquired lost", w.told())
		require.ErrorIs(t, k.Unlock(ctx), sluice.ErrNotHeld)

		require.ErrorIs(t, l.Do(ctx, name, func(context.Context) error {
			_, err := systest.NewLocker(t, rdb).ForceUnlock(ctx, name)
			return err
		}), sluice.ErrLost)
		require.Equal(t, "acquired lost", w.told())
	})
}

// TestHooks_TellOfALossAfterTheAcquisition: the lock is forced open while LockAcquired runs.
func TestHooks_TellOfALossAfterTheAcquisition(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, name := t.Context(), redistest.Name(t)
		var w witness
		var l *sluice.Locker
		hooks := w.hooks()
		tell := hooks.LockAcquired
		hooks.LockAcquired = func(ctx context.Context, i sluice.LockAcquired) {
			forced := make(chan error)
			go func() { _, err := l.ForceUnlock(context.Background(), name); forced <- err }()
			if err := <-forced; err != nil {
				t.Error(err)
			}
			tell(ctx, i)
		}
		l = systest.NewLocker(t, s.Client(t), sluice.WithLockHooks(hooks))
		k, err := l.Lock(ctx, name)
		require.NoError(t, err)
		require.False(t, k.Valid())
		require.Equal(t, "acquired lost", w.told())
		require.GreaterOrEqual(t, w.lost[0].Held, time.Duration(0))
		require.ErrorIs(t, k.Unlock(ctx), sluice.ErrNotHeld)
		require.Empty(t, w.told())
	})
}

// TestHooks_TellOfHandOvers on both sides, if there was one.
func TestHooks_TellOfHandOvers(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, name := t.Context(), redistest.Name(t)
		rdb, faults := s.Faulty(t)
		var w witness
		l := systest.NewLocker(t, rdb, sluice.WithLockHooks(w.hooks()))
		systest.Warm(t, l, name)
		for handed := 0; handed < 3; { // a slow machine may miss the time for it
			_ = w.told()
			first, err := l.Lock(ctx, name)
			require.NoError(t, err)
			next, scripts := waitFor(t, l, name), faults.Scripts()
			require.NoError(t, first.Unlock(ctx))
			second := <-next
			byHand := faults.Scripts() == scripts
			if byHand {
				handed++
			}
			require.NoError(t, second.Unlock(ctx))
			require.Len(t, strings.Fields(w.told()), 4)
			at := len(w.acquired) - 2
			require.Equal(t, []bool{false, byHand}, []bool{w.acquired[at].HandedOver, w.acquired[at+1].HandedOver})
			require.ElementsMatch(t, []bool{byHand, false}, []bool{w.released[at].HandedOver, w.released[at+1].HandedOver})
		}
		require.Empty(t, w.lost)
	})
}

// TestHooks_TellOfAReleaseWithoutAnswer as of one: the lock was given up in time.
func TestHooks_TellOfAReleaseWithoutAnswer(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		rdb, faults := s.Faulty(t)
		var w witness
		l := systest.NewLocker(t, rdb, sluice.WithLockHooks(w.hooks()))
		systest.Warm(t, l, name)
		_ = w.told()
		k, err := l.Lock(t.Context(), name)
		require.NoError(t, err)
		faults.Stall()
		defer faults.Resume()
		require.ErrorIs(t, k.Unlock(systest.Ended()), sluice.ErrUnknown)
		require.Equal(t, "acquired released", w.told())
	})
}

// TestHooks_TellTheTimes on a fake clock: how long a caller waited, how long a lock was held, and
// of a loss at the deadline.
func TestHooks_TellTheTimes(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		var w witness
		l, done := systest.BubbleLocker(t, rdb, sluice.WithLockHooks(w.hooks()), sluice.WithTTL(10*time.Second))
		defer done()
		ctx := t.Context()
		k, err := l.Lock(ctx, "a")
		require.NoError(t, err)
		next := make(chan *sluice.Lock)
		go func() {
			k, err := l.Lock(context.WithValue(ctx, lockHolder{}, "b"), "a")
			if err != nil {
				t.Error(err)
			}
			next <- k
		}()
		time.Sleep(3 * time.Second)
		require.NoError(t, k.Unlock(ctx))
		k = <-next
		require.Equal(t, 3*time.Second, w.acquired[1].Waited)
		require.Equal(t, 3*time.Second, w.released[0].Held)

		require.NoError(t, k.Extend(ctx, 20*time.Second))
		deadline := k.Deadline()
		_ = w.told()
		start := time.Now()
		time.Sleep(time.Until(deadline) - 1)
		require.Empty(t, w.told(), "before the deadline, which was moved")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, "lost", w.told())
		require.Equal(t, deadline.Sub(start), w.lost[0].Held)
		time.Sleep(time.Second)
		_ = k.Unlock(ctx)
		require.Empty(t, w.told(), "a lost lock was told of as released")
	})
}

type lockHolder struct{}

// TestHooks_TellOfTheLongestHold: a lock that is renewed is lost when WithMaxHold says so.
func TestHooks_TellOfTheLongestHold(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		var w witness
		l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(time.Second), sluice.WithMaxHold(time.Minute))
		defer done()
		_, err := l.Lock(t.Context(), "a", sluice.WithAutoRenew(), sluice.WithLockHooks(w.hooks()))
		require.NoError(t, err)
		time.Sleep(2 * time.Minute)
		require.Equal(t, "acquired lost", w.told())
		require.Equal(t, time.Minute, w.lost[0].Held)
		require.NoError(t, l.UnlockAll(t.Context()))
		require.Empty(t, w.told())
	})
}

// TestHooks_AnExpiredLockIsNotReleased, also for a user who has no hook for losses, and no timer.
func TestHooks_AnExpiredLockIsNotReleased(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		var w witness
		hooks := w.hooks()
		hooks.LockLost = nil
		l, done := systest.BubbleLocker(t, rdb, sluice.WithLockHooks(hooks), sluice.WithTTL(time.Second))
		defer done()
		for _, end := range []func(k *sluice.Lock) error{
			func(k *sluice.Lock) error { return k.Unlock(t.Context()) },
			func(*sluice.Lock) error { return l.UnlockAll(t.Context()) },
		} {
			k, err := l.Lock(t.Context(), "a")
			require.NoError(t, err)
			time.Sleep(2 * time.Second)
			_ = end(k)
			require.Equal(t, "acquired", w.told())
		}
	})
}

// TestHooks_PanicsAreContained: the lock, the renewals and other hooks go on.
func TestHooks_PanicsAreContained(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		var w witness
		bad := sluice.LockHooks{
			LockAcquired: func(context.Context, sluice.LockAcquired) { panic("acquired") },
			LockReleased: func(sluice.LockReleased) { panic(error(nil)) },
			LockLost:     func(sluice.LockLost) { panic(fmt.Errorf("lost")) },
		}
		l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(time.Second), sluice.WithAutoRenew(),
			sluice.WithLockHooks(bad), sluice.WithLockHooks(w.hooks()))
		defer done()
		ctx := t.Context()
		require.NoError(t, l.Do(ctx, "a", func(context.Context) error { return nil }))
		require.Equal(t, "acquired released", w.told())
		k, err := l.Lock(ctx, "a")
		require.NoError(t, err)
		other, err := l.Lock(ctx, "b")
		require.NoError(t, err)
		m.Del("Lock:a")
		<-k.Context().Done()
		time.Sleep(time.Minute)
		require.True(t, other.Valid(), "the renewals have ended")
		require.NoError(t, other.Unlock(ctx))
		require.Equal(t, "acquired acquired lost released", w.told())
	})
}

// TestHooks_GetTheContextOfTheCall, and not the one that WithMaxWait bounds.
func TestHooks_GetTheContextOfTheCall(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx := context.WithValue(t.Context(), lockHolder{}, "request 7")
		var got []context.Context
		l := systest.NewLocker(t, s.Client(t), sluice.WithMaxWait(time.Minute), sluice.WithLockHooks(sluice.LockHooks{
			LockAcquired: func(ctx context.Context, _ sluice.LockAcquired) { got = append(got, ctx) },
		}))
		k, err := l.Lock(ctx, redistest.Name(t))
		require.NoError(t, err)
		require.NoError(t, k.Unlock(ctx))
		require.Equal(t, []context.Context{ctx}, got)
	})
}

// TestHooks_CountEveryLockOnce: of many locks that are released, handed over, forced open and lost
// at the same time, each ends once, and after it was acquired.
func TestHooks_CountEveryLockOnce(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, name := t.Context(), redistest.Name(t)
		var w witness
		var held, got atomic.Int64
		balance := sluice.LockHooks{
			LockAcquired: func(context.Context, sluice.LockAcquired) { held.Add(1) },
			LockReleased: func(sluice.LockReleased) { held.Add(-1) },
			LockLost:     func(sluice.LockLost) { held.Add(-1) },
		}
		l := systest.NewLocker(t, s.Client(t), sluice.WithTTL(30*time.Millisecond), sluice.WithRetryInterval(5*time.Millisecond),
			sluice.WithLockHooks(w.hooks()), sluice.WithLockHooks(balance))
		var callers sync.WaitGroup
		for caller := range 16 {
			callers.Go(func() {
				for round := range 30 {
					k, err := l.Lock(ctx, fmt.Sprint(name, caller%3))
					if err != nil {
						continue // the reply took longer than the TTL
					}
					got.Add(1)
					switch (caller + round) % 5 {
					case 0:
						_, _ = l.ForceUnlock(ctx, k.Name())
					case 1:
						go func() { _, _ = l.ForceUnlock(ctx, k.Name()) }()
					case 2:
						_ = k.Extend(ctx, 40*time.Millisecond)
					case 3:
						for round%10 == 0 && k.Valid() {
							runtime.Gosched() // until its deadline
						}
					case 4:
						_ = l.UnlockAll(ctx) // also what was handed over to a caller that has not run since
					}
					_ = k.Unlock(ctx)
				}
			})
		}
		callers.Wait()
		require.NoError(t, l.Close())
		require.Eventually(t, func() bool { return held.Load() == 0 }, time.Minute, time.Millisecond)
		w.mu.Lock()
		defer w.mu.Unlock()
		require.EqualValues(t, got.Load(), len(w.acquired))
		require.Len(t, w.acquired, len(w.released)+len(w.lost))
		require.NotEmpty(t, w.released)
		require.NotEmpty(t, w.lost)
		open := 0
		for _, what := range w.order {
			if open++; what != "acquired" {
				open -= 2
			}
			require.GreaterOrEqual(t, open, 0, "an end before its beginning")
		}
	})
}
