package sluice_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// What is carried out when nobody expects it any more.

// warm takes and releases a lock, so that the server of that name knows the scripts and
// the client has a connection to it.
func warm(t *testing.T, l *sluice.Locker, name string) {
	t.Helper()
	k, err := l.Lock(t.Context(), name)
	require.NoError(t, err)
	require.NoError(t, k.Extend(t.Context(), time.Minute))
	require.NoError(t, k.Unlock(t.Context()))
}

// TestLateCopyNeverShortens: a copy of an earlier acquisition or extension that
// arrives after a longer extension must not take that back, or there would be two
// holders.
func TestLateCopyNeverShortens(t *testing.T) {
	for _, what := range []string{"first try", "acquire", "extend"} {
		t.Run(what, func(t *testing.T) {
			each(t, func(t *testing.T, s *redistest.Server) {
				name := redistest.Name(t)
				rdb, faults := s.Faulty(t)
				l, other := newLocker(t, rdb, sluice.WithTTL(300*time.Millisecond)), newLocker(t, s.Client(t))
				warm(t, l, name)
				if what != "extend" {
					faults.HoldRequest(1)
				}
				lock := l.Lock
				if what == "acquire" {
					lock = l.TryLock
				}
				k, err := lock(t.Context(), name)
				require.NoError(t, err)
				if what == "extend" {
					faults.HoldRequest(1)
					require.NoError(t, k.Extend(t.Context(), 400*time.Millisecond))
				}
				require.NoError(t, k.Extend(t.Context(), time.Hour))
				require.Equal(t, 1, faults.Deliver())
				_, err = other.Lock(within(t, time.Second), name)
				require.ErrorIs(t, err, sluice.ErrLocked, "a second holder")
				require.True(t, k.Valid())
			})
		})
	}
}

// TestLateCopyOfARefusedAcquisition: the first attempt is held up, its repeat is
// told that somebody else holds the lock, and the caller goes away. When the
// first attempt is carried out, it must not take the lock for nobody.
func TestLateCopyOfARefusedAcquisition(t *testing.T) {
	for _, what := range []string{"try", "lock"} {
		t.Run(what, func(t *testing.T) {
			each(t, func(t *testing.T, s *redistest.Server) {
				name, rdb := redistest.Name(t), s.Client(t)
				faulty, faults := s.Faulty(t)
				l, other := newLocker(t, faulty, sluice.WithTTL(time.Minute)), newLocker(t, rdb)
				warm(t, l, name)
				k, err := other.Lock(t.Context(), name)
				require.NoError(t, err)
				faults.HoldRequest(1)
				if what == "try" {
					_, err = l.TryLock(t.Context(), name)
				} else {
					_, err = l.Lock(within(t, 150*time.Millisecond), name)
				}
				require.ErrorIs(t, err, sluice.ErrLocked)
				require.NoError(t, k.Unlock(t.Context()))
				require.Equal(t, 1, faults.Deliver())
				require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "Lock:"+name).Val() == 0 },
					2*time.Second, 5*time.Millisecond, "held by nobody")
			})
		})
	}
}

// TestLateCopyOfALostLock: a copy of the acquisition arrives when the lock has been
// lost, and its holder told. It must not take the lock for nobody.
func TestLateCopyOfALostLock(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		name, rdb := redistest.Name(t), s.Client(t)
		faulty, faults := s.Faulty(t)
		l := newLocker(t, faulty, sluice.WithTTL(time.Minute))
		warm(t, l, name)
		faults.HoldRequest(1)
		k, err := l.TryLock(t.Context(), name)
		require.NoError(t, err)
		require.NoError(t, rdb.Del(t.Context(), "Lock:"+name).Err())
		require.ErrorIs(t, k.Extend(t.Context(), time.Minute), sluice.ErrNotHeld)
		require.Equal(t, 1, faults.Deliver())
		require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "Lock:"+name).Val() == 0 },
			2*time.Second, 5*time.Millisecond, "held by nobody")
	})
}

// TestCloseWhileAcquiring: what lands after Close does not stay either.
func TestCloseWhileAcquiring(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for _, bounded := range []bool{false, true} {
			name, rdb := redistest.Name(t), s.Client(t)
			faulty, faults := s.Faulty(t)
			l := newLocker(t, faulty, sluice.WithTTL(time.Minute))
			warm(t, l, name)
			faults.Delay(200 * time.Millisecond)
			ctx, result := context.Background(), make(chan error, 1)
			if bounded {
				ctx = within(t, 60*time.Millisecond)
			}
			go func() { _, err := l.Lock(ctx, name); result <- err }()
			require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "Lock:"+name).Val() == 1 },
				time.Second, time.Millisecond)
			require.NoError(t, l.Close())
			require.Error(t, <-result)
			require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "Lock:"+name).Val() == 0 },
				2*time.Second, 5*time.Millisecond)
		}
	})
}

// TestCloseDuringOperations is for the race detector.
func TestCloseDuringOperations(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	for range 50 {
		l, err := sluice.NewLocker(rdb)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for g := range 4 {
			name := redistest.Name(t) + fmt.Sprint(g)
			k, err := l.Lock(t.Context(), name)
			require.NoError(t, err)
			wg.Go(func() {
				for range 5 {
					_, _ = k.TTL(t.Context())
					_, _ = l.TryLock(t.Context(), name)
				}
			})
		}
		require.NoError(t, l.Close())
		wg.Wait()
	}
}

// TestForeignTTL: a foreign holder's TTL may be longer than a time.Duration.
func TestForeignTTL(t *testing.T) {
	t.Parallel()
	ctx, rdb, name := t.Context(), redistest.Redis(t).Client(t), redistest.Name(t)
	l := newLocker(t, rdb)
	for _, ttl := range []string{"10000000000000", "288230376151711745"} { // the latter is 2^58 + 1
		require.NoError(t, rdb.Do(ctx, "SET", "Lock:"+name, "x", "PX", ttl).Err())
		for range 5 {
			_, err := l.TryLock(ctx, name)
			require.ErrorIs(t, err, sluice.ErrLocked)
		}
		info, err := l.Inspect(ctx, name)
		require.NoError(t, err)
		require.Greater(t, info.TTL, 50*365*24*time.Hour)
	}
}

// TestCleanerAndThePool: cleaning up after one call on a server that hangs must
// not use up the pool.
func TestCleanerAndThePool(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, PoolSize: 10})
	defer func() { _ = rdb.Close() }()
	l := newLocker(t, rdb)
	warm(t, l, "a")
	s.Pause(t)
	_, err := l.Lock(within(t, 10*time.Millisecond), "a")
	require.ErrorIs(t, err, sluice.ErrUnknown)
	time.Sleep(8 * time.Second) // beyond the read timeout, so that there were several tries
	stats := rdb.PoolStats()
	require.LessOrEqual(t, stats.TotalConns-stats.IdleConns, uint32(2))
	s.Resume(t)
}
