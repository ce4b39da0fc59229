package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// TestLocker_ServesWaitersInOrder: callers of one Locker get the lock in the order in which
// they came, whether by a hand-over or, after the time for that, by way of Redis.
func TestLocker_ServesWaitersInOrder(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb)
		defer done()
		k, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		const n = 100
		var order []int // guarded by the lock
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				k, err := l.Lock(t.Context(), "a", sluice.WithTTL(time.Duration(1+i%5)*time.Second))
				require.NoError(t, err)
				order = append(order, i)
				time.Sleep(3 * time.Millisecond)
				require.True(t, k.Valid())
				require.NoError(t, k.Unlock(t.Context()))
			})
			time.Sleep(time.Millisecond)
		}
		require.NoError(t, k.Unlock(t.Context()))
		all.Wait()
		for i := range n {
			require.Equal(t, i, order[i])
		}
	})
}

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
			for sluice.Waiting(l) == 0 {
				time.Sleep(50 * time.Microsecond) // until it waits
			}
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
		for sluice.Waiting(l) == 0 {
			time.Sleep(50 * time.Microsecond) // until it waits
		}
		faults.Delay(100 * time.Millisecond)
		extended := make(chan error, 1)
		go func() { extended <- first.Extend(ctx, time.Minute) }()
		time.Sleep(time.Millisecond) // on its way, and still in time for a hand-over
		require.NoError(t, first.Unlock(ctx))
		second := <-next
		if err := <-extended; err != nil {
			require.ErrorIs(t, err, sluice.ErrNotHeld)
		}
		faults.Delay(0)
		time.Sleep(50 * time.Millisecond) // for a release in the background, if there is one
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
			for sluice.Waiting(l) == 0 {
				time.Sleep(50 * time.Microsecond) // until it waits
			}
			faults.StallRequests()
			sent := faults.Scripts()
			extended, released := make(chan error, 1), make(chan error, 1)
			go func() { extended <- first.Extend(ctx, time.Hour) }()
			for faults.Scripts() == sent {
				time.Sleep(50 * time.Microsecond) // until it is on its way
			}
			go func() { released <- first.Unlock(ctx) }()
			for first.Valid() {
				time.Sleep(50 * time.Microsecond) // until Unlock has begun
			}
			time.Sleep(2 * time.Millisecond) // in which it could hand the lock over, and can do nothing else
			faults.Resume()
			require.NoError(t, <-released)
			if err := <-extended; err != nil {
				require.ErrorIs(t, err, sluice.ErrNotHeld)
			}
			second := <-next
			left, err := clean.PTTL(ctx, "Lock:"+name).Result()
			require.NoError(t, err)
			require.LessOrEqual(t, left, ttl+12*time.Millisecond, "the next holder's key lives for the extension's TTL")
			require.NoError(t, second.Unlock(ctx))
		}
	})
}

// TestLocker_LetsOtherProcessesHaveTheLock: a Locker whose callers never stop hands the
// lock over among them for a short time only, whatever their TTLs would allow.
func TestLocker_LetsOtherProcessesHaveTheLock(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb)
		defer done()
		other, done := systest.BubbleLocker(t, rdb)
		defer done()
		ctx, stop := context.WithCancel(t.Context())
		var busy sync.WaitGroup
		for i := range 4 {
			busy.Go(func() {
				for ctx.Err() == nil {
					k, err := l.Lock(ctx, "a", sluice.WithTTL(time.Duration(1+10*(i%2))*time.Second))
					if err != nil {
						break
					}
					time.Sleep(time.Millisecond)
					require.NoError(t, k.Unlock(t.Context()))
				}
			})
		}
		time.Sleep(time.Second)
		for range 20 {
			start := time.Now()
			k, err := other.Lock(t.Context(), "a")
			require.NoError(t, err)
			require.Less(t, time.Since(start), 100*time.Millisecond)
			require.NoError(t, k.Unlock(t.Context()))
			time.Sleep(17 * time.Millisecond)
		}
		stop()
		busy.Wait()
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

// TestLocker_WaitsOutAForgottenLock: a holder that never unlocks keeps the waiters until
// its TTL has run out, and no longer.
func TestLocker_WaitsOutAForgottenLock(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb)
		defer done()
		forgotten, err := l.Lock(t.Context(), "a", sluice.WithTTL(time.Second))
		require.NoError(t, err)
		time.AfterFunc(500*time.Millisecond, func() { require.NoError(t, forgotten.Extend(t.Context(), 2*time.Second)) })
		start := time.Now()
		k, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.InDelta(t, 2500*time.Millisecond, time.Since(start), float64(30*time.Millisecond))
		_ = forgotten.Unlock(t.Context())
		require.True(t, k.Valid())
		_, err = k.TTL(t.Context())
		require.NoError(t, err, "the forgotten handle released it")
		require.NoError(t, k.Unlock(t.Context()))
	})
}

// TestLocker_WaitersLeaveWhenTheirContextsEnd: a caller whose context ends goes at once,
// says that the lock was held, and disturbs no other waiter.
func TestLocker_WaitersLeaveWhenTheirContextsEnd(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb)
		defer done()
		k, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		var left, served atomic.Int32
		var all sync.WaitGroup
		for i := range 60 {
			all.Go(func() {
				ctx := t.Context()
				if i%3 != 0 {
					bounded, cancel := context.WithTimeout(ctx, time.Duration(i)*time.Millisecond)
					defer cancel()
					ctx = bounded
				}
				start := time.Now()
				k, err := l.Lock(ctx, "a")
				if err != nil {
					require.ErrorIs(t, err, sluice.ErrLocked)
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.Equal(t, time.Duration(i)*time.Millisecond, time.Since(start))
					left.Add(1)
					return
				}
				time.Sleep(time.Millisecond)
				require.NoError(t, k.Unlock(t.Context()))
				served.Add(1)
			})
		}
		time.Sleep(40 * time.Millisecond)
		require.NoError(t, k.Unlock(t.Context()))
		all.Wait()
		require.GreaterOrEqual(t, served.Load(), int32(20))
		require.GreaterOrEqual(t, left.Load(), int32(20))
		_, busy := sluice.Names(l)
		require.Zero(t, busy, "a waiter stayed in its wait queue")
	})
}

// TestLocker_TryLockNeitherWaitsNorOvertakes: it neither waits nor overtakes.
func TestLocker_TryLockNeitherWaitsNorOvertakes(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		l, other, name, ctx := systest.NewLocker(t, rdb), systest.NewLocker(t, s.Client(t)), redistest.Name(t), t.Context()
		systest.Warm(t, l, name)
		// Held by another process, and waited for: the wait queue knows.
		k, err := other.Lock(ctx, name)
		require.NoError(t, err)
		waiting := make(chan *sluice.Lock)
		go func() {
			k, err := l.Lock(ctx, name)
			if err != nil {
				t.Error(err)
			}
			waiting <- k
		}()
		require.Eventually(t, func() bool {
			_, err := l.TryLock(ctx, name)
			require.ErrorIs(t, err, sluice.ErrLocked)
			return faults.Scripts() > 0
		}, time.Second, time.Millisecond)
		require.NoError(t, k.Unlock(ctx))
		k = <-waiting
		// Held by one of us: not a command.
		before := faults.Scripts()
		_, err = l.TryLock(ctx, name)
		require.ErrorIs(t, err, sluice.ErrLocked)
		require.Equal(t, before, faults.Scripts())
		require.NoError(t, k.Unlock(ctx))
		k, err = l.TryLock(ctx, name)
		require.NoError(t, err)
		require.NoError(t, k.Unlock(ctx))
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

// TestLocker_WaitersReportAServerThatHangs: an error goes to the caller whose command
// failed, and that caller is not told that the lock is held. Those who wait in line behind
// it are: they have sent nothing, and have waited in vain.
func TestLocker_WaitersReportAServerThatHangs(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		l, name := systest.NewLocker(t, rdb), redistest.Name(t)
		systest.Warm(t, l, name)
		faults.Stall()
		defer faults.Resume()
		lag := systest.Lag(t)
		var all sync.WaitGroup
		var heads atomic.Int32
		for range 10 {
			all.Go(func() {
				start := time.Now()
				_, err := l.Lock(systest.Within(t, 100*time.Millisecond), name)
				if took, most := time.Since(start), 150*time.Millisecond+10*lag(); took > most {
					t.Errorf("took %v, %v are allowed", took, most)
				}
				require.ErrorIs(t, err, context.DeadlineExceeded)
				if !errors.Is(err, sluice.ErrLocked) {
					heads.Add(1)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 1, heads.Load())
	})
}

// TestLocker_ATimeoutIsErrLocked joined with the context's error, for every caller that has
// waited in line or was told that the lock is held, whenever its context ends.
func TestLocker_ATimeoutIsErrLocked(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		l, other, name := systest.NewLocker(t, rdb), systest.NewLocker(t, s.Client(t)), redistest.Name(t)
		systest.Warm(t, l, name)
		held, err := other.Lock(t.Context(), name, sluice.WithTTL(time.Hour))
		require.NoError(t, err)
		first := make(chan error, 1) // it makes sure that it is known
		go func() {
			_, err := l.Lock(systest.Within(t, time.Second), name)
			first <- err
		}()
		require.Eventually(t, func() bool { _, busy := sluice.Names(l); return busy > 0 }, time.Second, time.Millisecond)
		var all sync.WaitGroup
		var mu sync.Mutex
		kinds := map[string]int{}
		for range 150 {
			all.Go(func() {
				_, err := l.Lock(systest.Within(t, 100*time.Millisecond+rand.N(700*time.Millisecond)), name)
				kind := fmt.Sprint(errors.Is(err, sluice.ErrLocked), errors.Is(err, context.DeadlineExceeded), errors.Is(err, sluice.ErrUnknown))
				mu.Lock()
				defer mu.Unlock()
				kinds[kind]++
			})
		}
		faults.Delay(20 * time.Millisecond) // so that polls are often under way
		time.AfterFunc(500*time.Millisecond, faults.Stall)
		all.Wait()
		require.ErrorIs(t, <-first, sluice.ErrLocked)
		faults.Delay(0)
		faults.Resume()
		require.Equal(t, map[string]int{"true true false": 150}, kinds)
		require.NoError(t, held.Unlock(t.Context()))
	})
}

// TestLocker_WaitsOutAForgottenLockForItsOwnTTL: a holder that forgets a lock of a short
// TTL blocks the other waiters for that TTL, even if the hand-overs began with a lock of a
// long one.
func TestLocker_WaitsOutAForgottenLockForItsOwnTTL(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb)
		defer done()
		long, err := l.Lock(t.Context(), "a", sluice.WithTTL(time.Minute))
		require.NoError(t, err)
		var others sync.WaitGroup
		others.Go(func() {
			_, err := l.Lock(t.Context(), "a", sluice.WithTTL(100*time.Millisecond)) // and forgets it
			require.NoError(t, err)
		})
		synctest.Wait()
		others.Go(func() {
			start := time.Now()
			k, err := l.Lock(t.Context(), "a")
			require.NoError(t, err)
			require.Less(t, time.Since(start), time.Second+200*time.Millisecond)
			require.NoError(t, k.Unlock(t.Context()))
		})
		synctest.Wait()
		time.Sleep(time.Second)
		require.NoError(t, long.Unlock(t.Context()))
		others.Wait()
	})
}

// TestLocker_MaxWaitBoundsTheWaitAlone: behind a holder of this process or of another one,
// and neither the lock nor the function that Do calls.
func TestLocker_MaxWaitBoundsTheWaitAlone(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		const wait = 70 * time.Millisecond
		l, done := systest.BubbleLocker(t, rdb, sluice.WithMaxWait(wait))
		defer done()
		other, done := systest.BubbleLocker(t, rdb)
		defer done()
		for _, holder := range []*sluice.Locker{l, other} {
			k, err := holder.Lock(t.Context(), "a")
			require.NoError(t, err)
			for what, take := range map[string]func() error{
				"lock": func() error { _, err := l.Lock(context.Background(), "a"); return err },
				"do":   func() error { return l.Do(t.Context(), "a", func(context.Context) error { return nil }) },
			} {
				start := time.Now()
				err := take()
				require.ErrorIs(t, err, sluice.ErrLocked, what)
				require.ErrorIs(t, err, context.DeadlineExceeded, what)
				require.Equal(t, wait, time.Since(start), what)
			}
			_, err = l.TryLock(t.Context(), "a")
			require.ErrorIs(t, err, sluice.ErrLocked)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			require.NoError(t, k.Unlock(t.Context()))
		}
		require.NoError(t, l.Do(t.Context(), "a", func(ctx context.Context) error {
			_, bounded := ctx.Deadline()
			require.False(t, bounded)
			time.Sleep(time.Hour)
			return ctx.Err()
		}))
	})
}

// TestLocker_MaxWaitSaysWhenTheServerWasSilent: a wait in which no server has said that
// the lock is held is no ErrLocked.
func TestLocker_MaxWaitSaysWhenTheServerWasSilent(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		l, name := systest.NewLocker(t, rdb), redistest.Name(t)
		systest.Warm(t, l, name)
		faults.Stall()
		defer faults.Resume()
		_, err := l.Lock(context.Background(), name, sluice.WithMaxWait(50*time.Millisecond))
		require.ErrorIs(t, err, sluice.ErrUnknown)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, sluice.ErrLocked)
	})
}
