package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/sluicetest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// each runs a test on a Redis in the process, and on a real one.
func each(t *testing.T, test func(t *testing.T, rdb *redis.Client)) {
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		test(t, sluicetest.New(t).Client())
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(t, redistest.Start(t).Client(t).(*redis.Client))
	})
}

// TestRun_SellsWhatIsThere: whichever guard a buyer has.
func TestRun_SellsWhatIsThere(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, rdb *redis.Client) {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), rdb, &out))
		require.Equal(t, "sold 10, left 0\ncanceled order-1\n", out.String())
	})
}

// TestGuards_ExcludeEachOther: each of them, held, keeps each other one out, and lets it in when it
// is released.
func TestGuards_ExcludeEachOther(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, rdb *redis.Client) {
		locker, err := sluice.NewLocker(rdb)
		require.NoError(t, err)
		t.Cleanup(func() { _ = locker.Close() })
		guards := map[string]Guard{"redislock": ByRedislock(rdb), "redsync": ByRedsync(rdb), "PHP": ByPHP(rdb), "Sluice": BySluice(locker)}
		for first, holder := range guards {
			for second, other := range guards {
				require.NoError(t, holder(t.Context(), func() error {
					soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
					defer cancel()
					require.Error(t, other(soon, func() error { t.Errorf("%s let %s in", first, second); return nil }), second)
					return nil
				}))
				called := false
				require.NoError(t, other(t.Context(), func() error { called = true; return nil }))
				require.True(t, called)
			}
		}
	})
}

// TestPrefix_IsTheKey: with an empty prefix the name is the key that redislock and redsync have.
func TestPrefix_IsTheKey(t *testing.T) {
	t.Parallel()
	rdb := sluicetest.New(t).Client()
	locker, err := sluice.NewLocker(rdb, sluice.WithLockPrefix(""))
	require.NoError(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	lock, err := redislock.Obtain(t.Context(), rdb, "stock", time.Minute, nil)
	require.NoError(t, err)
	_, err = locker.TryLock(t.Context(), "stock")
	require.ErrorIs(t, err, sluice.ErrLocked)
	require.NoError(t, lock.Release(t.Context()))
	held, err := locker.TryLock(t.Context(), "stock")
	require.NoError(t, err)
	_, err = redislock.Obtain(t.Context(), rdb, "stock", time.Minute, nil)
	require.ErrorIs(t, err, redislock.ErrNotObtained)
	require.NoError(t, held.Unlock(t.Context()))
}
