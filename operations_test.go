package sluice_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// These are statements of docs/operations.md that no other test makes.

// TestPoolOfOne: one connection is enough for everything at once, since nothing holds
// it for longer than a command; pub/sub has one of its own.
func TestPoolOfOne(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, ctx := dial(t, redis.Options{Addr: s.Addr, PoolSize: 1}), t.Context()
	l, q := newLocker(t, rdb, sluice.WithRetryInterval(time.Hour)), newQueue(t, rdb)
	other := newLocker(t, rdb, sluice.WithRetryInterval(time.Hour))
	var done atomic.Int64
	start(t, &sluice.Worker{Queue: q, Concurrency: 64, Lease: time.Second, Handler: func(ctx context.Context, e sluice.Entry) error {
		turn := l
		if done.Load()%2 == 0 {
			turn = other
		}
		return turn.Do(ctx, "a", func(context.Context) error { done.Add(1); return nil }, sluice.WithFencing())
	}})
	for i := range 200 {
		_, err := q.Enqueue(ctx, sluice.Task{ID: string(rune('0' + i))})
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return done.Load() == 200 }, 20*time.Second, 10*time.Millisecond)
	require.Less(t, connections(&guarded{T: t, admin: s.Client(t)}), 12) // its own, pub/sub, and ours
}

// TestEviction: a full server whose policy is to evict keys that have a TTL evicts
// locks. Their holders learn so, and not before they ask.
func TestEviction(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--maxmemory-policy", "volatile-ttl")
	rdb, ctx := s.Client(t), t.Context()
	k, err := newLocker(t, rdb).TryLock(ctx, "a")
	require.NoError(t, err)
	_, err = newQueue(t, rdb).Enqueue(ctx, sluice.Task{ID: "a"})
	require.NoError(t, err)
	require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	require.ErrorContains(t, rdb.Set(ctx, "x", "y", 0).Err(), "OOM")
	require.True(t, k.Valid())
	require.ErrorIs(t, k.Extend(ctx, time.Minute), sluice.ErrNotHeld)
	require.Len(t, rdb.Keys(ctx, "*").Val(), 1) // the queue, which has none
}

// TestRestartFromBackup: what is restored are the tasks as they were then, those that
// have been finished since included. Fences go on upwards without their counter.
func TestRestartFromBackup(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, ctx := s.Client(t), t.Context()
	l, q := newLocker(t, rdb), newQueue(t, rdb)
	for _, id := range []string{"finished since", "claimed since"} {
		_, err := q.Enqueue(ctx, sluice.Task{ID: id, Payload: []byte("p")})
		require.NoError(t, err)
	}
	require.NoError(t, rdb.Save(ctx).Err())
	es, err := q.Claim(ctx, 2, time.Hour)
	require.NoError(t, err)
	require.NoError(t, q.Dequeue(ctx, es[0]))
	k, err := l.TryLock(ctx, "a", sluice.WithFencing())
	require.NoError(t, err)
	s.Down()
	s.Up(t)

	require.Eventually(t, func() bool { return rdb.Ping(ctx).Err() == nil }, 5*time.Second, 10*time.Millisecond)
	require.ErrorIs(t, k.Unlock(ctx), sluice.ErrNotHeld)
	next, err := l.TryLock(ctx, "a", sluice.WithFencing())
	require.NoError(t, err)
	require.Greater(t, next.Fence(), k.Fence())
	require.ErrorIs(t, q.Dequeue(ctx, es[1]), sluice.ErrStale)
	again, err := q.Claim(ctx, 9, time.Hour)
	require.NoError(t, err)
	require.Len(t, again, 2)
	require.Equal(t, 1, again[0].Attempt)
}
