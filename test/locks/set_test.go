package locks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
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

// requireFree: none of the names is held.
func requireFree(t *testing.T, l *sluice.Locker, names ...string) {
	t.Helper()
	for _, name := range names {
		info, err := l.Inspect(context.Background(), name)
		require.NoError(t, err)
		require.False(t, info.Held, name)
	}
}

func TestLockSet_TakesAndReleasesAll(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, base := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb)
		a, b, c := base+"a", base+"b", base+"c"
		set, err := l.LockAll(ctx, []string{c, a, b, a}, sluice.WithFencing())
		require.NoError(t, err)
		require.True(t, set.Valid())
		require.NoError(t, set.Context().Err())
		for _, name := range []string{a, b, c} {
			k := set.Get(name)
			require.Equal(t, k.Token(), rdb.Get(ctx, "Lock:"+name).Val())
			require.Positive(t, k.Fence())
		}
		require.Less(t, set.Get(a).Fence(), set.Get(b).Fence(), "taken in order")
		require.Less(t, set.Get(b).Fence(), set.Get(c).Fence(), "taken in order")
		require.Nil(t, set.Get("other"))
		require.False(t, set.Get("other").Valid())
		require.Equal(t, "sluice.LockSet(3)", fmt.Sprintf("%+v", set))

		require.NoError(t, set.Unlock(ctx))
		require.False(t, set.Valid())
		require.ErrorIs(t, context.Cause(set.Context()), context.Canceled)
		requireFree(t, l, a, b, c)
		err = set.Unlock(ctx)
		require.ErrorIs(t, err, sluice.ErrNotHeld)
		require.ErrorContains(t, err, a)
		require.ErrorContains(t, err, "and 2 more")
	})
}

// TestLockSet_TakesAllOrNothing: one of the locks is held elsewhere.
func TestLockSet_TakesAllOrNothing(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, base := t.Context(), s.Client(t), redistest.Name(t)
		l, other := systest.NewLocker(t, rdb), systest.NewLocker(t, s.Client(t))
		a, b, c, d := base+"a", base+"b", base+"c", base+"d"
		held, err := other.Lock(ctx, c)
		require.NoError(t, err)
		for _, bounded := range []func() (*sluice.LockSet, error){
			func() (*sluice.LockSet, error) {
				return l.LockAll(ctx, []string{a, b, c, d}, sluice.WithMaxWait(time.Second))
			},
			func() (*sluice.LockSet, error) {
				return l.LockAll(systest.Within(t, time.Second), []string{a, b, c, d})
			},
		} {
			require.Eventually(t, func() bool {
				_, err = bounded()
				return !errors.Is(err, sluice.ErrUnknown) // on a machine that took the whole second for the first try
			}, 30*time.Second, time.Millisecond)
			require.ErrorIs(t, err, sluice.ErrLocked)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "lock all "+strconv.Quote(c))
			for _, name := range []string{a, b, d} { // in the background, if the server is slow and ctx has ended
				require.Eventually(t, func() bool {
					info, err := other.Inspect(ctx, name)
					return err == nil && !info.Held
				}, 10*time.Second, time.Millisecond, name)
			}
			require.True(t, held.Valid())
		}
		require.NoError(t, held.Unlock(ctx))
		set, err := l.LockAll(ctx, []string{a, b, c, d})
		require.NoError(t, err)
		require.NoError(t, set.Unlock(ctx))
	})
}

func TestLockSet_BadArguments(t *testing.T) {
	t.Parallel()
	ctx, l := t.Context(), systest.NewLocker(t, redistest.Mini(t).Client(t))
	fn := func(context.Context) error { return nil }
	for _, names := range [][]string{nil, {}} {
		_, err := l.LockAll(ctx, names)
		require.ErrorIs(t, err, sluice.ErrInvalid)
		require.ErrorIs(t, l.DoAll(ctx, names, fn), sluice.ErrInvalid)
	}
	_, err := l.LockAll(ctx, []string{"a", "b{c"})
	require.ErrorIs(t, err, sluice.ErrInvalidName)
	require.ErrorIs(t, l.DoAll(ctx, []string{"a", ""}, fn), sluice.ErrInvalidName)
	_, err = l.LockAll(ctx, []string{"a"}, sluice.WithTTL(-1))
	require.ErrorIs(t, err, sluice.ErrInvalid)
	require.ErrorIs(t, l.DoAll(ctx, []string{"a"}, nil), sluice.ErrInvalid)
	set := &sluice.LockSet{}
	require.ErrorIs(t, set.Unlock(ctx), sluice.ErrInvalid)
	require.False(t, set.Valid())
	require.Nil(t, set.Get("a"))
	require.Error(t, set.Context().Err())
	require.Equal(t, "sluice.LockSet(0)", fmt.Sprint(set))
	require.NoError(t, l.Close())
	_, err = l.LockAll(ctx, []string{"a"})
	require.ErrorIs(t, err, sluice.ErrClosed)
}

// TestLockSet_IsRenewedWhileItWaits: by the fake clock the last lock takes twenty TTLs.
func TestLockSet_IsRenewedWhileItWaits(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, closeLocker := systest.BubbleLocker(t, rdb, sluice.WithTTL(3*time.Second))
		defer closeLocker()
		other, closeOther := systest.BubbleLocker(t, systest.BubbleClient(t, systest.BubbleDialer(m)))
		defer closeOther()
		last, err := other.Lock(t.Context(), "c", sluice.WithAutoRenew())
		require.NoError(t, err)
		time.AfterFunc(time.Minute, func() { _ = last.Unlock(context.Background()) })
		start := time.Now()
		set, err := l.LockAll(t.Context(), []string{"a", "b", "c"})
		require.NoError(t, err)
		require.InDelta(t, 60, time.Since(start).Seconds(), 1)
		require.True(t, set.Valid())
		time.Sleep(time.Minute)
		require.True(t, set.Valid(), "and afterwards")
		require.NoError(t, set.Unlock(t.Context()))
	})
}

// TestLockSet_MaxWaitIsForAll: the first lock takes two thirds of it, and the second gets what is
// left.
func TestLockSet_MaxWaitIsForAll(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, closeLocker := systest.BubbleLocker(t, rdb)
		defer closeLocker()
		other, closeOther := systest.BubbleLocker(t, systest.BubbleClient(t, systest.BubbleDialer(m)), sluice.WithAutoRenew())
		defer closeOther()
		a, err := other.Lock(t.Context(), "a")
		require.NoError(t, err)
		_, err = other.Lock(t.Context(), "b")
		require.NoError(t, err)
		time.AfterFunc(40*time.Second, func() { _ = a.Unlock(context.Background()) })
		start := time.Now()
		_, err = l.LockAll(t.Context(), []string{"a", "b"}, sluice.WithMaxWait(time.Minute))
		require.ErrorIs(t, err, sluice.ErrLocked)
		require.ErrorContains(t, err, `lock all "b"`)
		require.InDelta(t, 60, time.Since(start).Seconds(), 0.1)
		requireFree(t, other, "a")
	})
}

// TestLockSet_LossWhileItWaits ends the wait: one that was taken is forced open elsewhere.
func TestLockSet_LossWhileItWaits(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, closeLocker := systest.BubbleLocker(t, rdb, sluice.WithTTL(3*time.Second))
		defer closeLocker()
		other, closeOther := systest.BubbleLocker(t, systest.BubbleClient(t, systest.BubbleDialer(m)))
		defer closeOther()
		_, err := other.Lock(t.Context(), "c", sluice.WithAutoRenew())
		require.NoError(t, err)
		start := time.Now()
		time.AfterFunc(10*time.Second, func() { _, _ = other.ForceUnlock(context.Background(), "a") })
		_, err = l.LockAll(t.Context(), []string{"a", "b", "c"})
		require.ErrorIs(t, err, sluice.ErrLost)
		require.NotErrorIs(t, err, sluice.ErrLocked)
		require.ErrorContains(t, err, `lock all "a"`)
		require.InDelta(t, 10, time.Since(start).Seconds(), 2, "at the next renewal")
		requireFree(t, other, "a", "b")

		time.AfterFunc(10*time.Second, func() { _ = l.UnlockAll(context.Background()) })
		_, err = l.LockAll(t.Context(), []string{"a", "b", "c"})
		require.ErrorIs(t, err, sluice.ErrClosed)
		synctest.Wait() // UnlockAll, whose releases were under way, has returned
		requireFree(t, other, "a", "b")
	})
}

// TestLockSet_EndsWithTheFirstLock: the Context, and DoAll's; the others are released by Unlock.
func TestLockSet_EndsWithTheFirstLock(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, base := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb)
		a, b := base+"a", base+"b"
		set, err := l.LockAll(ctx, []string{a, b})
		require.NoError(t, err)
		_, err = l.ForceUnlock(ctx, b)
		require.NoError(t, err)
		<-set.Context().Done()
		require.ErrorIs(t, context.Cause(set.Context()), sluice.ErrLost)
		require.False(t, set.Valid())
		require.True(t, set.Get(a).Valid())
		err = set.Unlock(ctx)
		require.ErrorIs(t, err, sluice.ErrNotHeld)
		require.ErrorContains(t, err, b)
		require.NotContains(t, err.Error(), "more")
		requireFree(t, l, a, b)

		for want, end := range map[error]func(){
			sluice.ErrLost:   func() { _, _ = l.ForceUnlock(ctx, a) },
			sluice.ErrClosed: func() { _ = l.UnlockAll(ctx) },
		} {
			mine := errors.New("mine")
			err = l.DoAll(ctx, []string{a, b}, func(ctx context.Context) error {
				end()
				<-ctx.Done()
				require.ErrorIs(t, context.Cause(ctx), want)
				return mine
			})
			require.ErrorIs(t, err, want)
			require.ErrorIs(t, err, mine)
			requireFree(t, l, a, b)
		}
	})
}

func TestLocker_DoAll(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, base := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb)
		a, b, c := base+"a", base+"b", base+"c"
		type key struct{}
		ctx = context.WithValue(ctx, key{}, 1)
		var kept context.Context
		require.NoError(t, l.DoAll(ctx, []string{b, a}, func(ctx context.Context) error {
			kept = ctx
			require.Equal(t, 1, ctx.Value(key{}))
			require.Equal(t, a, sluice.LockFromContext(ctx, a).Name())
			require.True(t, sluice.LockFromContext(ctx, b).Valid())
			require.Nil(t, sluice.LockFromContext(ctx, c))
			return l.Do(ctx, c, func(ctx context.Context) error {
				require.True(t, sluice.LockFromContext(ctx, a).Valid())
				require.True(t, sluice.LockFromContext(ctx, c).Valid())
				return nil
			})
		}))
		require.Error(t, kept.Err())
		requireFree(t, l, a, b, c)
		require.Panics(t, func() {
			_ = l.DoAll(ctx, []string{a, b}, func(context.Context) error { panic("mine") })
		})
		requireFree(t, l, a, b)
		require.ErrorIs(t, l.DoAll(systest.Ended(), []string{a, b}, func(context.Context) error { return nil }), context.Canceled)
	})
}

// TestLockSet_UnlockHandsOver: the next caller of the Locker gets its lock without a command, and
// what is wrong with another lock is said of that.
func TestLockSet_UnlockHandsOver(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		ctx := t.Context()
		l, closeLocker := systest.BubbleLocker(t, rdb, sluice.WithTTL(10*time.Second))
		defer closeLocker()
		set, err := l.LockAll(ctx, []string{"a", "b", "c"})
		require.NoError(t, err)
		next := waitFor(t, l, "a")
		token := set.Get("a").Token()
		require.NoError(t, rdb.Del(ctx, "Lock:c").Err())
		err = set.Unlock(ctx)
		require.ErrorIs(t, err, sluice.ErrNotHeld)
		require.ErrorContains(t, err, "c")
		k := <-next
		require.Equal(t, token, k.Token(), "not handed over")
		require.NoError(t, k.Unlock(ctx))
		requireFree(t, l, "a", "b")
	})
}

// TestLocker_UnlockAllHandsNoneOver: a lock goes back to the server, where other processes wait.
func TestLocker_UnlockAllHandsNoneOver(t *testing.T) {
	t.Parallel()
	ctx, l, name := t.Context(), systest.NewLocker(t, redistest.Mini(t).Client(t)), redistest.Name(t)
	for range 5 {
		k, err := l.Lock(ctx, name)
		require.NoError(t, err)
		next := waitFor(t, l, name)
		require.NoError(t, l.UnlockAll(ctx))
		second := <-next
		require.NotEqual(t, k.Token(), second.Token())
		require.NoError(t, second.Unlock(ctx))
	}
}

// TestLockSet_ReleasesInPipelines: of many names each costs the same, and a pipeline releases 250.
func TestLockSet_ReleasesInPipelines(t *testing.T) {
	redistest.NotShort(t)
	t.Parallel()
	rdb := redistest.Start(t).Client(t) // a miniredis is slower, the more keys it has
	pipelines := new(systest.Pipelines)
	rdb.AddHook(pipelines)
	l, base := systest.NewLocker(t, rdb, sluice.WithTTL(time.Hour)), redistest.Name(t)
	names := make([]string, 4000*systest.Scale())
	for i := range names {
		names[i] = base + strconv.Itoa(i)
	}
	took := func(n int) time.Duration {
		start := time.Now()
		set, err := l.LockAll(t.Context(), names[:n])
		require.NoError(t, err)
		pipelines.Reset()
		require.NoError(t, set.Unlock(t.Context()))
		require.EqualValues(t, (n+249)/250, pipelines.Sent.Load())
		return time.Since(start) / time.Duration(n)
	}
	require.NoError(t, l.DoAll(t.Context(), names[:1], func(context.Context) error { return nil })) // the server learns the scripts
	// On a busy machine, a few may be quick by chance.
	for range 5 {
		if few := took(500); took(len(names)) < 3*few {
			return
		}
	}
	t.Fatal("each of many names costs more than each of a few, five times")
}

// TestLockSet_ReleaseWithoutAnswerIsRepeated: the reply to the pipeline is lost.
func TestLockSet_ReleaseWithoutAnswerIsRepeated(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		l, base := systest.NewLocker(t, rdb), redistest.Name(t)
		for _, drop := range []func(int){faults.DropReply, faults.DropRequest} {
			set, err := l.LockAll(t.Context(), []string{base + "a", base + "b"})
			require.NoError(t, err)
			drop(1)
			require.NoError(t, set.Unlock(t.Context()))
			requireFree(t, l, base+"a", base+"b")
		}
	})
}

// TestLockSet_NeverDeadlocks: baskets of 2 to 5 of 12 names, in any order, by two Lockers.
func TestLockSet_NeverDeadlocks(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		base := redistest.Name(t)
		lockers := []*sluice.Locker{systest.NewLocker(t, s.Client(t)), systest.NewLocker(t, s.Client(t))}
		var inside [12]atomic.Int32
		var group sync.WaitGroup
		for i := range 12 {
			group.Go(func() {
				for range 10 * systest.Scale() {
					basket := rand.Perm(12)[:2+rand.IntN(4)]
					var names []string
					for _, item := range basket {
						names = append(names, base+strconv.Itoa(item))
					}
					err := lockers[i%2].DoAll(systest.Within(t, time.Minute), names, func(context.Context) error {
						for _, item := range basket {
							if inside[item].Add(1) != 1 {
								t.Error("two in a section")
							}
						}
						for _, item := range basket {
							inside[item].Add(-1)
						}
						return nil
					})
					if err != nil {
						t.Error(strings.TrimSpace(err.Error()))
					}
				}
			})
		}
		group.Wait()
		_, busy := systest.Names(lockers[0])
		require.Zero(t, busy+systest.Waiting(lockers[0]))
	})
}
