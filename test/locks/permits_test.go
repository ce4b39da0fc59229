package locks

import (
	"context"
	"math"
	"slices"
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

func TestPermits_AsManyAsThereAre(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb, sluice.WithPermits(3), sluice.WithFencing())
		plain := systest.NewLocker(t, s.Client(t))
		var held []*sluice.Lock
		for i := range 3 {
			k, err := l.Lock(ctx, name)
			require.NoError(t, err)
			require.True(t, k.Valid())
			if i > 0 {
				require.Greater(t, k.Fence(), held[i-1].Fence())
			}
			held = append(held, k)
			info, err := plain.Inspect(ctx, name)
			require.NoError(t, err)
			require.Equal(t, i+1, info.Holders)
			require.True(t, info.Held)
			require.InDelta(t, 15, info.TTL.Seconds(), 8)
		}
		_, err := l.TryLock(ctx, name)
		require.ErrorIs(t, err, sluice.ErrLocked)
		_, err = l.Lock(ctx, name, sluice.WithMaxWait(time.Second))
		require.ErrorIs(t, err, sluice.ErrLocked)
		require.Eventually(t, func() bool {
			info, err := l.Inspect(ctx, name)
			return err == nil && info.Waiting == 0
		}, 10*time.Second, time.Millisecond, "it leaves the line, for which a permit would be reserved")
		left, err := held[1].TTL(ctx)
		require.NoError(t, err)
		require.InDelta(t, 15, left.Seconds(), 8)
		require.NoError(t, held[1].Extend(ctx, time.Hour))
		left, err = held[1].TTL(ctx)
		require.NoError(t, err)
		require.InDelta(t, 3600, left.Seconds(), 9)
		require.Greater(t, rdb.PTTL(ctx, "Lock:"+name).Val(), 3590*time.Second)

		last := held[2].Fence()
		require.NoError(t, held[0].Unlock(ctx))
		require.ErrorIs(t, held[0].Unlock(ctx), sluice.ErrNotHeld)
		held[0], err = l.TryLock(ctx, name)
		require.NoError(t, err)
		require.Greater(t, held[0].Fence(), last)
		for _, k := range held {
			require.True(t, k.Valid())
			require.NoError(t, k.Unlock(ctx))
		}
		require.Zero(t, rdb.Exists(ctx, "Lock:"+name).Val())
		requireFree(t, plain, name)
		require.NoError(t, l.Do(ctx, name, func(ctx context.Context) error {
			require.True(t, sluice.LockFromContext(ctx, name).Valid())
			return nil
		}))
		require.Zero(t, systest.Apart(l))
	})
}

// TestPermits_AllSayTheSameNumber: others are told, and change nothing, until no permit is held.
func TestPermits_AllSayTheSameNumber(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb)
		for n, others := range map[int][]int{1: {2, 3}, 3: {1, 2, 4}} {
			k, err := l.Lock(ctx, name, sluice.WithPermits(n))
			require.NoError(t, err)
			for _, other := range others {
				for _, opts := range [][]sluice.LockOption{{sluice.WithPermits(other)}, {sluice.WithPermits(other), sluice.WithFencing()}} {
					if n == 1 || other != 1 { // else it is in line behind a holder of this Locker, or not: see the next
						_, err = l.Lock(ctx, name, opts...)
						require.ErrorIs(t, err, sluice.ErrInvalid)
						require.ErrorContains(t, err, "give the same WithPermits everywhere")
					}
					elsewhere := systest.NewLocker(t, s.Client(t))
					_, err = elsewhere.Lock(ctx, name, opts...)
					require.ErrorIs(t, err, sluice.ErrInvalid)
					_, err = elsewhere.TryLock(ctx, name, opts...)
					require.ErrorIs(t, err, sluice.ErrInvalid)
					require.ErrorContains(t, err, "give the same WithPermits everywhere")
					_, err = elsewhere.Adopt(ctx, name, k.Token(), opts...)
					if other == 1 || n == 1 {
						require.ErrorIs(t, err, sluice.ErrNotHeld)
					}
				}
			}
			require.True(t, k.Valid())
			require.NoError(t, k.Extend(ctx, time.Minute))
			require.NoError(t, k.Unlock(ctx))
		}
		for _, n := range []int{0, -1, 1001} {
			_, err := l.Lock(ctx, name, sluice.WithPermits(n))
			require.ErrorIs(t, err, sluice.ErrInvalid)
			_, err = sluice.NewLocker(rdb, sluice.WithPermits(n))
			require.ErrorIs(t, err, sluice.ErrInvalid)
		}
		require.NoError(t, rdb.ZAdd(ctx, "Lock:"+name, redis.Z{Score: 1, Member: "foreign"}).Err())
		for _, n := range []int{1, 3} {
			_, err := l.TryLock(ctx, name, sluice.WithPermits(n))
			require.ErrorIs(t, err, sluice.ErrCorrupt)
			require.NotErrorIs(t, err, sluice.ErrInvalid)
		}
		require.EqualValues(t, 1, rdb.ZCard(ctx, "Lock:"+name).Val())
		for _, count := range []float64{0, 7, -1, -2.5} { // where the library has how many permits there are
			require.NoError(t, rdb.ZAdd(ctx, "Lock:"+name, redis.Z{Score: 9e15, Member: "foreign"}, redis.Z{Score: count}).Err())
			_, err := l.TryLock(ctx, name, sluice.WithPermits(3))
			require.ErrorIs(t, err, sluice.ErrCorrupt, count)
			require.NotErrorIs(t, err, sluice.ErrInvalid, count)
		}
		require.NoError(t, rdb.Del(ctx, "Lock:"+name).Err())
		without := math.Inf(1) // an end
		require.NoError(t, rdb.ZAdd(ctx, "Lock:"+name, redis.Z{Score: -2}, redis.Z{Score: without, Member: "a"}, redis.Z{Score: without, Member: "b"}).Err())
		_, err := l.TryLock(ctx, name, sluice.WithPermits(2))
		require.ErrorIs(t, err, sluice.ErrLocked)
		require.NotErrorIs(t, err, sluice.ErrInvalid)
		require.NoError(t, rdb.Del(ctx, "Lock:"+name).Err())
	})
}

// TestPermits_EndOneByOne: a crashed holder's permit is free when its TTL has run out, and the
// others stay.
func TestPermits_EndOneByOne(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, closeLocker := systest.BubbleLocker(t, rdb, sluice.WithPermits(2), sluice.WithTTL(10*time.Second), sluice.WithRetryInterval(time.Hour))
		defer closeLocker()
		other, closeOther := systest.BubbleLocker(t, systest.BubbleClient(t, systest.BubbleDialer(m)), sluice.WithPermits(2), sluice.WithRetryInterval(time.Hour))
		defer closeOther()
		start := time.Now()
		renewed, err := l.Lock(t.Context(), "a", sluice.WithAutoRenew())
		require.NoError(t, err)
		crashed, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		third, err := other.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.InDelta(t, 10, time.Since(start).Seconds(), 0.02)
		require.False(t, crashed.Valid())
		require.ErrorIs(t, crashed.Extend(t.Context(), time.Minute), sluice.ErrNotHeld)
		time.Sleep(10 * time.Minute)
		require.True(t, renewed.Valid())
		require.False(t, third.Valid())
		require.ErrorIs(t, third.Unlock(t.Context()), sluice.ErrNotHeld)
		require.NoError(t, renewed.Unlock(t.Context()))
		require.False(t, m.Exists("Lock:a"))
	})
}

// TestPermits_LeaveAKeyForAsLongAsOneIsHeld: a permit with a long TTL that is given back keeps no
// plain lock waiting.
func TestPermits_LeaveAKeyForAsLongAsOneIsHeld(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb, sluice.WithPermits(2))
		long, err := l.Lock(ctx, name, sluice.WithTTL(time.Hour))
		require.NoError(t, err)
		short, err := l.Lock(ctx, name, sluice.WithTTL(time.Minute))
		require.NoError(t, err)
		require.NoError(t, long.Unlock(ctx))
		require.InDelta(t, time.Minute, rdb.PTTL(ctx, "Lock:"+name).Val(), float64(20*time.Second))
		long, err = l.Lock(ctx, name, sluice.WithTTL(time.Hour))
		require.NoError(t, err)
		require.NoError(t, short.Unlock(ctx))
		require.Greater(t, rdb.PTTL(ctx, "Lock:"+name).Val(), 59*time.Minute)
		require.NoError(t, long.Unlock(ctx))
		plain, err := systest.NewLocker(t, rdb).TryLock(ctx, name)
		require.NoError(t, err)
		require.NoError(t, plain.Unlock(ctx))
	})
}

// TestPermits_WakeOneWaiterEach: without polls, by notifications alone, in the process that waits
// and in another.
func TestPermits_WakeOneWaiterEach(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		var lockers []*sluice.Locker
		for range 2 {
			l, done := systest.BubbleLocker(t, systest.BubbleClient(t, systest.BubbleDialer(m)), sluice.WithPermits(3), sluice.WithTTL(time.Hour), sluice.WithRetryInterval(30*time.Minute))
			defer done()
			lockers = append(lockers, l)
		}
		var held []*sluice.Lock
		for range 3 {
			k, err := lockers[0].Lock(t.Context(), "a")
			require.NoError(t, err)
			held = append(held, k)
		}
		got := make(chan *sluice.Lock, 10)
		for i := range 10 {
			go func() {
				k, err := lockers[i%2].Lock(context.Background(), "a")
				if err != nil {
					t.Error(err)
				}
				got <- k
			}()
		}
		synctest.Wait() // they wait
		for i := range 10 {
			require.Empty(t, got)
			require.NoError(t, held[i].Unlock(t.Context()))
			time.Sleep(20 * time.Millisecond)
			require.Len(t, got, 1, "after release %d", i)
			held = append(held, <-got)
		}
		for _, k := range held[10:] {
			require.NoError(t, k.Unlock(t.Context()))
		}
		require.False(t, m.Exists("Lock:a"))
	})
}

// TestPermits_EndWithTheirLocker: ForceUnlock, UnlockAll and Close, and Detach with Adopt.
func TestPermits_EndWithTheirLocker(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l, other := systest.NewLocker(t, rdb, sluice.WithPermits(3)), systest.NewLocker(t, s.Client(t))
		take := func() (a, b *sluice.Lock) {
			a, err := l.Lock(ctx, name, sluice.WithAutoRenew())
			require.NoError(t, err)
			b, err = l.Lock(ctx, name)
			require.NoError(t, err)
			return a, b
		}
		a, b := take()
		forced, err := l.ForceUnlock(ctx, name)
		require.NoError(t, err)
		require.True(t, forced)
		require.False(t, a.Valid() || b.Valid())
		require.ErrorIs(t, context.Cause(a.Context()), sluice.ErrLost)
		requireFree(t, other, name)
		forced, err = other.ForceUnlock(ctx, name)
		require.NoError(t, err)
		require.False(t, forced)

		a, b = take()
		token, err := a.Detach(ctx)
		require.NoError(t, err)
		require.NoError(t, l.UnlockAll(ctx))
		require.ErrorIs(t, b.Unlock(ctx), sluice.ErrClosed)
		adopted, err := other.Adopt(ctx, name, token, sluice.WithPermits(3), sluice.WithFencing(), sluice.WithTTL(time.Hour))
		require.NoError(t, err)
		require.Positive(t, adopted.Fence())
		info, err := other.Inspect(ctx, name)
		require.NoError(t, err)
		require.Equal(t, 1, info.Holders)
		require.Greater(t, info.TTL, 59*time.Minute)
		a, _ = take()
		require.NoError(t, l.Close())
		require.False(t, a.Valid())
		require.True(t, adopted.Valid())
		require.NoError(t, adopted.Unlock(ctx))
		requireFree(t, other, name)
		require.Zero(t, systest.Apart(l)+systest.Apart(other))
	})
}

// TestPermits_NeverOneMore than there are, by three Lockers with many callers each; every Locker
// has its share.
func TestPermits_NeverOneMore(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		const permits, lockers, callers = 3, 3, 8
		name, sections := redistest.Name(t), 300*systest.Scale()
		var inside, most, done atomic.Int32
		var shares [lockers]atomic.Int32
		var group sync.WaitGroup
		for i := range lockers {
			rdb := s.Client(t)
			l := systest.NewLocker(t, rdb, sluice.WithPermits(permits))
			for range callers {
				group.Go(func() {
					for int(done.Load()) < sections {
						err := l.Do(systest.Within(t, time.Minute), name, func(context.Context) error {
							now := inside.Add(1)
							for before := most.Load(); now > before; before = most.Load() {
								if most.CompareAndSwap(before, now) {
									break
								}
							}
							err := rdb.Ping(t.Context()).Err() // the section
							shares[i].Add(1)
							done.Add(1)
							inside.Add(-1)
							return err
						})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		group.Wait()
		require.LessOrEqual(t, int(most.Load()), permits)
		if s.Name != "miniredis" { // where a script takes longer than a section, on a busy machine
			require.Greater(t, int(most.Load()), 1, "on a busy machine, not all at once")
		}
		for i := range shares {
			require.Greater(t, int(shares[i].Load()), sections/30, "locker %d of %v", i, &shares)
		}
		requireFree(t, systest.NewLocker(t, s.Client(t)), name)
	})
}

// TestLocker_InspectNamesTheOwnersOfPermits: of those that are held, in the order in which they
// end; one that gave no label has none.
func TestLocker_InspectNamesTheOwnersOfPermits(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		for i, label := range []string{"third", "", "second", "first"} {
			opts := []sluice.LockOption{sluice.WithPermits(5), sluice.WithTTL(time.Duration(4-i) * time.Minute)}
			if label != "" {
				opts = append(opts, sluice.WithOwner(label))
			}
			_, err := systest.NewLocker(t, rdb).Lock(ctx, name, opts...)
			require.NoError(t, err)
		}
		ended := redis.Z{Score: float64(time.Now().Add(-time.Second).UnixMilli()), Member: "ended:" + strings.Repeat("A", 26)}
		require.NoError(t, rdb.ZAdd(ctx, "Lock:"+name, ended).Err())
		info, err := systest.NewLocker(t, rdb).Inspect(ctx, name)
		require.NoError(t, err)
		require.Equal(t, []string{"first", "second", "third"}, info.Owners)
		require.Equal(t, 4, info.Holders)
		require.Empty(t, info.Owner)
	})
}

// TestLocker_InspectNamesThoseWhoWait, in the order in which they do, and come then: a label may look
// like anything. A machine that lets goroutines run late by a fifth of the shortest reservation may make
// one of them too late for its own, so that the next one comes before it: only then all wait once more.
func TestLocker_InspectNamesThoseWhoWait(t *testing.T) {
	waiters := []string{"first", "", "eu:7:1:2", "*5:5", ">", strings.Repeat("ö", 32)}
	named := slices.DeleteFunc(slices.Clone(waiters), func(label string) bool { return label == "" })
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		for kind, opts := range map[string][]sluice.LockOption{"lock": nil, "fences": {sluice.WithFencing()}, "permits": {sluice.WithPermits(1)}} {
			var came []string
			lag := systest.Lag(t)
			for range 5 {
				if came = comeInTurn(t, s.Client(t), waiters, named, opts); slices.Equal(came, waiters) || lag() < 10*time.Millisecond {
					break
				}
			}
			require.Equal(t, waiters, came, kind)
		}
	})
}

// comeInTurn has callers with labels wait for a name, one after the other, and returns in which order
// they have had it.
func comeInTurn(t *testing.T, rdb redis.UniversalClient, waiters, named []string, opts []sluice.LockOption) (came []string) {
	ctx, name := t.Context(), redistest.Name(t)
	looker := systest.NewLocker(t, rdb)
	held, err := looker.Lock(ctx, name, opts...)
	require.NoError(t, err)
	come := make(chan string)
	for i, label := range waiters {
		own := opts
		if label != "" {
			own = append(slices.Clip(opts), sluice.WithOwner(label))
		}
		l := systest.NewLocker(t, rdb)
		go func() { // ends with its turn
			_ = l.Do(ctx, name, func(context.Context) error { come <- label; return nil }, own...)
		}()
		require.Eventually(t, func() bool {
			info, err := looker.Inspect(ctx, name)
			return err == nil && info.Waiting == i+1
		}, 20*time.Second, time.Millisecond)
	}
	info, err := looker.Inspect(ctx, name)
	require.NoError(t, err)
	require.Equal(t, named, info.WaitingOwners)
	require.NoError(t, held.Unlock(ctx))
	for i := range waiters {
		came = append(came, <-come)
		require.Eventually(t, func() bool {
			info, err := looker.Inspect(ctx, name)
			return err == nil && info.Waiting <= len(waiters)-1-i
		}, 20*time.Second, time.Millisecond)
	}
	return came
}
