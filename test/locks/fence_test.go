package locks

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// micros is a server's time in microseconds, as fences have it.
func micros(t *testing.T, rdb redis.UniversalClient) int64 {
	t.Helper()
	now, err := rdb.Time(t.Context()).Result()
	require.NoError(t, err)
	return now.UnixMicro()
}

// TestLock_FencesRise: over everything that may come between two holders, the later one's
// fence is higher. What is lost without being released (not so quickly in practice)
// leaves a block unused, and the counter ahead of the clock by it: so the loss of all
// data comes first.
func TestLock_FencesRise(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l, other := systest.NewLocker(t, rdb, sluice.WithFencing()), systest.NewLocker(t, s.Client(t), sluice.WithFencing())
		counter := "{Lock:" + name + "}:fence"
		last := micros(t, rdb) - 1
		gone := func(k *sluice.Lock) { require.ErrorIs(t, k.Unlock(ctx), sluice.ErrNotHeld) }
		unlock := func(k *sluice.Lock) { require.NoError(t, k.Unlock(ctx)) }
		for _, event := range []struct {
			name  string
			comes func(k *sluice.Lock)
		}{
			{"released", unlock},
			{"all data lost", func(k *sluice.Lock) { require.NoError(t, rdb.Del(ctx, "Lock:"+name, counter).Err()); gone(k) }},
			{"the counter lost", func(k *sluice.Lock) { require.NoError(t, rdb.Del(ctx, counter).Err()); unlock(k) }},
			{"forced open", func(k *sluice.Lock) { _, err := other.ForceUnlock(ctx, name); require.NoError(t, err); gone(k) }},
			{"all released", func(*sluice.Lock) { require.NoError(t, l.UnlockAll(ctx)) }},
			{"expired", func(k *sluice.Lock) {
				require.NoError(t, rdb.PExpire(ctx, "Lock:"+name, time.Millisecond).Err())
				require.Eventually(t, func() bool { return rdb.Exists(ctx, "Lock:"+name).Val() == 0 }, 20*time.Second, time.Millisecond)
				gone(k)
			}},
			{"a holder without", func(k *sluice.Lock) { unlock(k); unfenced(t, rdb, name) }},
			{"a clock set back", func(k *sluice.Lock) { unlock(k); last = ahead(t, rdb, counter) }},
		} {
			what := event.name
			for range 3 {
				k, err := other.TryLock(ctx, name)
				require.NoError(t, err, what)
				require.Greater(t, k.Fence(), last, what)
				last = k.Fence()
				require.NoError(t, k.Unlock(ctx))
				k, err = l.Lock(ctx, name)
				require.NoError(t, err, what)
				require.Greater(t, k.Fence(), last, what)
				last = k.Fence()
				event.comes(k)
			}
		}
		require.Greater(t, rdb.PTTL(ctx, counter).Val(), 23*time.Hour, "the counter must expire")
	})
}

// ahead makes a counter what it would be if the clock had been set back since.
func ahead(t *testing.T, rdb redis.UniversalClient, counter string) int64 {
	t.Helper()
	last, err := rdb.IncrBy(t.Context(), counter, time.Hour.Microseconds()).Result()
	require.NoError(t, err)
	require.Greater(t, last, micros(t, rdb))
	return last
}

// unfenced takes a lock without fencing.
func unfenced(t *testing.T, rdb redis.UniversalClient, name string) {
	t.Helper()
	k, err := systest.NewLocker(t, rdb).Lock(t.Context(), name)
	require.NoError(t, err)
	require.Zero(t, k.Fence())
	require.NoError(t, k.Unlock(t.Context()))
}

// TestLock_FencesRiseAcrossHandOvers: among contending holders with and without fencing, no
// fence is given out twice, or ahead of the server's clock, and the reserved ones
// that were not used are given back.
func TestLock_FencesRiseAcrossHandOvers(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, name := s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb)
		var last int64 // guarded by the lock
		var handed int
		var token string
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				for range 200 {
					var opts []sluice.LockOption
					if i%4 > 0 {
						opts = append(opts, sluice.WithFencing())
					}
					k, err := l.Lock(t.Context(), name, opts...)
					if !requireNoError(t, err) {
						return
					}
					if token == k.Token() {
						handed++
					}
					token = k.Token()
					switch fence := k.Fence(); {
					case i%4 == 0 && fence != 0:
						t.Errorf("a fence of %d without fencing", fence)
					case i%4 > 0 && fence <= last:
						t.Errorf("fence %d after %d", fence, last)
					default:
						last = max(last, fence)
					}
					requireNoError(t, k.Unlock(t.Context()))
				}
			})
		}
		all.Wait()
		require.Greater(t, handed, 1000, "hand-overs")
		require.LessOrEqual(t, last, micros(t, rdb), "ahead of the server's clock")
		stored, err := rdb.Get(t.Context(), "{Lock:"+name+"}:fence").Int64()
		require.NoError(t, err)
		require.GreaterOrEqual(t, stored, last)
		require.LessOrEqual(t, stored, micros(t, rdb), "reserved, and not given back")
	})
}

// TestLock_FenceOfAHandOverIsItsTime: a lock that is handed over after a while has a fence
// of that moment. A fence of the moment at which its process got the lock from Redis would
// be lower than what another primary has given in between, as one does that was promoted
// beside the first.
func TestLock_FenceOfAHandOverIsItsTime(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		const held = 4 * time.Millisecond
		l, name := systest.NewLocker(t, s.Client(t), sluice.WithFencing()), redistest.Name(t)
		for handed := 0; handed < 5; { // a slow machine may miss the time for it
			first, err := l.Lock(t.Context(), name)
			require.NoError(t, err)
			next := make(chan *sluice.Lock)
			go func() {
				k, err := l.Lock(t.Context(), name)
				requireNoError(t, err)
				next <- k
			}()
			time.Sleep(held) // the lock is held for so long: fences are the server's real time
			require.NoError(t, first.Unlock(t.Context()))
			second := <-next
			require.GreaterOrEqual(t, second.Fence()-first.Fence(), held.Microseconds())
			require.LessOrEqual(t, second.Fence(), micros(t, s.Client(t)))
			if second.Token() == first.Token() {
				handed++
			}
			require.NoError(t, second.Unlock(t.Context()))
		}
	})
}

// requireNoError is for goroutines, which must not end the test.
func requireNoError(t *testing.T, err error) bool {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
	return err == nil
}

// TestLocker_GivesBackFencesOfAbandonedAcquisitions: the block of fences of an abandoned
// acquisition goes back with it, so that fences don't run away from the clock.
func TestLocker_GivesBackFencesOfAbandonedAcquisitions(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		faulty, faults := s.Faulty(t)
		rdb, name := s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, faulty, sluice.WithFencing())
		k, err := l.Lock(t.Context(), name) // now the server knows the scripts
		require.NoError(t, err)
		require.NoError(t, k.Unlock(t.Context()))
		last := func() int64 {
			n, err := rdb.Get(t.Context(), "{Lock:"+name+"}:fence").Int64()
			require.NoError(t, err)
			return n
		}
		before := last()
		faults.Delay(300 * time.Millisecond)
		systest.Unsure(t, 100*time.Millisecond, func(ctx context.Context) error {
			_, err := l.Lock(ctx, name)
			return err
		})
		require.Eventually(t, func() bool { return last() > before && rdb.Exists(t.Context(), "Lock:"+name).Val() == 0 },
			10*time.Second, time.Millisecond, "it never came, or was not released")
		stored := last()
		require.LessOrEqual(t, stored, micros(t, rdb))
	})
}

// TestLocker_LeavesForeignFenceKeysAlone: what is no number of ours is left as it is, and
// the lock with it.
func TestLocker_LeavesForeignFenceKeysAlone(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l, key, counter := systest.NewLocker(t, rdb, sluice.WithFencing()), "Lock:"+name, "{Lock:"+name+"}:fence"
		for _, foreign := range []string{"abc", "-5", "1e3", " 7", "", "9999999999999999", "12345678901234567890"} {
			require.NoError(t, rdb.Set(ctx, counter, foreign, 0).Err())
			_, err := l.Lock(ctx, name)
			require.ErrorIs(t, err, sluice.ErrCorrupt, foreign)
			_, err = l.TryLock(ctx, name)
			require.ErrorIs(t, err, sluice.ErrCorrupt, foreign)
			require.Equal(t, foreign, rdb.Get(ctx, counter).Val())
			require.Zero(t, rdb.Exists(ctx, key).Val())
		}
		require.NoError(t, rdb.Del(ctx, counter).Err())
		require.NoError(t, rdb.LPush(ctx, counter, "a").Err())
		_, err := l.Lock(ctx, name)
		require.ErrorIs(t, err, sluice.ErrCorrupt)
		_, err = l.Lock(ctx, name, sluice.WithPermits(2))
		require.ErrorIs(t, err, sluice.ErrCorrupt)
		require.NotErrorIs(t, err, sluice.ErrInvalid, "no caller holds it")
		require.Zero(t, rdb.Exists(ctx, key).Val())

		// A counter that is spoilt while the lock is held does not keep its holder from
		// releasing it.
		require.NoError(t, rdb.Del(ctx, counter).Err())
		k, err := l.Lock(ctx, name)
		require.NoError(t, err)
		require.NoError(t, rdb.Set(ctx, counter, "abc", 0).Err())
		require.NoError(t, k.Unlock(ctx))
		require.Equal(t, "abc", rdb.Get(ctx, counter).Val())
		require.Zero(t, rdb.Exists(ctx, key).Val())
	})
}

// TestLock_FenceKeyLiesInTheSlotOfTheLock lies in the slot of its lock.
func TestLock_FenceKeyLiesInTheSlotOfTheLock(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, name := s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb, sluice.WithFencing(), sluice.WithLockPrefix("L-{"+name+"}-"))
		k, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, k.Unlock(t.Context()))
		stored, err := rdb.Get(t.Context(), "L-{"+name+"}-a:fence").Result()
		require.NoError(t, err)
		require.Equal(t, strconv.FormatInt(k.Fence(), 10), stored)
	})
}

// TestLock_FencesFollowTheClock: fences follow the clock, and a counter that has expired
// leaves it to time.
func TestLock_FencesFollowTheClock(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := systest.BubbleLocker(t, rdb, sluice.WithFencing())
		defer done()
		last := int64(0)
		for range 20 {
			k, err := l.Lock(t.Context(), "a")
			require.NoError(t, err)
			require.Greater(t, k.Fence(), last)
			require.Equal(t, time.Now().UnixMicro(), k.Fence())
			last = k.Fence()
			require.NoError(t, k.Unlock(t.Context()))
			time.Sleep(25 * time.Hour)
			require.Empty(t, m.Keys())
		}
	})
}

// TestLock_RepeatedAcquisitionTakesItsFencesBack: an acquisition whose reply was lost is followed
// by another one, which replaces it and its block. A second block would be ahead of the clock.
func TestLock_RepeatedAcquisitionTakesItsFencesBack(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		faulty, faults := s.Faulty(t)
		rdb, name := s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, faulty, sluice.WithFencing())
		k, err := l.Lock(t.Context(), name) // now the server of that name knows the script
		require.NoError(t, err)
		require.NoError(t, k.Unlock(t.Context()))
		faults.DropReply(1)
		before := faults.Scripts()
		k, err = l.Lock(t.Context(), name)
		require.NoError(t, err)
		require.GreaterOrEqual(t, faults.Scripts()-before, 2, "the fault did not strike")
		last, err := rdb.Get(t.Context(), "{Lock:"+name+"}:fence").Int64()
		require.NoError(t, err)
		require.Equal(t, k.Fence()+9999, last)
		require.LessOrEqual(t, k.Fence(), micros(t, rdb), "a second block was reserved")
		require.NoError(t, k.Unlock(t.Context()))
	})
}
