package locks

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
	"github.com/stretchr/testify/assert"
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
		_, busy := systest.Names(l)
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
		}, 20*time.Second, time.Millisecond)
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

// TestLocker_TryLockAfterAnUnlockTakesTheLock: goroutines that take turns of their own find no
// other caller before them. Each Unlock, and each TryLock in vain, is over when it returns.
func TestLocker_TryLockAfterAnUnlockTakesTheLock(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, permits := range []int{1, 2} {
			l, name, ctx := systest.NewLocker(t, s.Client(t), sluice.WithPermits(permits)), redistest.Name(t), t.Context()
			var turn sync.Mutex // of those goroutines
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					for range 50 {
						turn.Lock()
						var held []*sluice.Lock
						for range permits {
							k, err := l.TryLock(ctx, name)
							if !assert.NoError(t, err) {
								break
							}
							held = append(held, k)
						}
						_, err := l.TryLock(ctx, name)
						assert.ErrorIs(t, err, sluice.ErrLocked)
						for _, k := range held {
							assert.NoError(t, k.Unlock(ctx))
						}
						turn.Unlock()
					}
				})
			}
			all.Wait()
		}
	})
}

// TestLocker_OfManyTryLocksOneAsks: the others are ErrLocked, and send nothing.
func TestLocker_OfManyTryLocksOneAsks(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		faults := redistest.NewFaults(systest.BubbleDialer(m))
		rdb := systest.BubbleClient(t, faults.Dial)
		defer func() { require.NoError(t, rdb.Close()) }()
		for _, permits := range []int{1, 3} {
			l, done := systest.BubbleLocker(t, rdb, sluice.WithPermits(permits))
			k, err := l.TryLock(t.Context(), "a") // now the server knows the scripts
			require.NoError(t, err)
			require.NoError(t, k.Unlock(t.Context()))
			before := faults.Scripts()
			faults.Delay(time.Second)
			var taken, locked atomic.Int32
			var all sync.WaitGroup
			for range 10 {
				all.Go(func() {
					_, err := l.TryLock(t.Context(), "a")
					if err == nil {
						taken.Add(1)
						return
					}
					require.ErrorIs(t, err, sluice.ErrLocked)
					locked.Add(1)
				})
			}
			synctest.Wait()
			require.EqualValues(t, 9, locked.Load(), "before there is an answer")
			all.Wait()
			require.EqualValues(t, 1, taken.Load())
			require.Equal(t, before+1, faults.Scripts())
			faults.Delay(0)
			done()
		}
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
		ctx := systest.Within(t, 100*time.Millisecond)
		for range 10 {
			all.Go(func() {
				if ctx.Err() != nil {
					return // it has come too late
				}
				start := time.Now()
				_, err := l.Lock(ctx, name)
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
			_, err := l.Lock(systest.Within(t, 3*time.Second), name) // longer than the others take to begin, on a busy machine
			first <- err
		}()
		require.Eventually(t, func() bool { _, busy := systest.Names(l); return busy > 0 }, 20*time.Second, time.Millisecond)
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
		var err error
		systest.Unsure(t, time.Minute, func(context.Context) error {
			_, err = l.Lock(context.Background(), name, sluice.WithMaxWait(50*time.Millisecond))
			return err
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, sluice.ErrLocked)
	})
}
