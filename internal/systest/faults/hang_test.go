package faults

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// calls are all operations whose context bounds them.
func calls(name string, k *sluice.Lock, l *sluice.Locker, q *sluice.Queue) map[string]func(ctx context.Context) error {
	e := sluice.Entry{ID: "a", Score: 1}
	return map[string]func(ctx context.Context) error{
		"lock":     func(ctx context.Context) error { _, err := l.Lock(ctx, name); return err },
		"try lock": func(ctx context.Context) error { _, err := l.TryLock(ctx, name); return err },
		"do":       func(ctx context.Context) error { return l.Do(ctx, name, func(context.Context) error { return nil }) },
		"lock all": func(ctx context.Context) error { _, err := l.LockAll(ctx, []string{name, "b"}); return err },
		"do all": func(ctx context.Context) error {
			return l.DoAll(ctx, []string{name}, func(context.Context) error { return nil })
		},
		"adopt":        func(ctx context.Context) error { _, err := l.Adopt(ctx, name, k.Token()); return err },
		"permit":       func(ctx context.Context) error { _, err := l.Lock(ctx, "p", sluice.WithPermits(3)); return err },
		"try permit":   func(ctx context.Context) error { _, err := l.TryLock(ctx, "p2", sluice.WithPermits(3)); return err },
		"inspect":      func(ctx context.Context) error { _, err := l.Inspect(ctx, name); return err },
		"force unlock": func(ctx context.Context) error { _, err := l.ForceUnlock(ctx, name); return err },
		"extend lock":  func(ctx context.Context) error { return k.Extend(ctx, time.Minute) },
		"ttl":          func(ctx context.Context) error { _, err := k.TTL(ctx); return err },
		"enqueue":      func(ctx context.Context) error { _, err := q.Enqueue(ctx, sluice.Task{ID: "a"}); return err },
		"claim":        func(ctx context.Context) error { _, err := q.Claim(ctx, 1, time.Second); return err },
		"pop":          func(ctx context.Context) error { _, err := q.Pop(ctx, 1); return err },
		"peek":         func(ctx context.Context) error { _, err := q.Peek(ctx, 1); return err },
		"dequeue":      func(ctx context.Context) error { return q.Dequeue(ctx, e) },
		"retry":        func(ctx context.Context) error { return q.Retry(ctx, e, 0) },
		"release":      func(ctx context.Context) error { return q.Release(ctx, e) },
		"bury":         func(ctx context.Context) error { return q.Bury(ctx, e, "") },
		"dead":         func(ctx context.Context) error { _, err := q.Dead(ctx, sluice.Entry{}, 1); return err },
		"revive":       func(ctx context.Context) error { _, err := q.Revive(ctx, "a"); return err },
		"extend":       func(ctx context.Context) error { return q.Extend(ctx, e, time.Second) },
		"keep alive":   func(ctx context.Context) error { return q.KeepAlive(ctx, e, time.Second, forever) },
		"cancel":       func(ctx context.Context) error { _, err := q.Cancel(ctx, "a"); return err },
		"reschedule":   func(ctx context.Context) error { _, err := q.Reschedule(ctx, "a", 0); return err },
		"drop":         func(ctx context.Context) error { _, err := q.Drop(ctx, "a"); return err },
		"get":          func(ctx context.Context) error { _, err := q.Get(ctx, "a"); return err },
		"stats":        func(ctx context.Context) error { _, err := q.Stats(ctx); return err },
		"purge":        func(ctx context.Context) error { return q.Purge(ctx) },
		"wait":         q.Wait,
	}
}

// forever works until its context ends.
func forever(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// hangs runs every operation with a context of 100ms while nothing is answered. Each must
// return soon after that, and none may claim to know what it does not.
func hangs(t *testing.T, name string, k *sluice.Lock, l *sluice.Locker, q *sluice.Queue) {
	t.Helper()
	lag := systest.Lag(t)
	for op, run := range calls(name, k, l, q) {
		start := time.Now()
		err := run(systest.Within(t, 100*time.Millisecond))
		require.Less(t, time.Since(start), 150*time.Millisecond+10*lag(), op)
		require.ErrorIs(t, err, context.DeadlineExceeded, op)
		require.NotErrorIs(t, err, sluice.ErrLocked, op)
		require.NotErrorIs(t, err, sluice.ErrStale, op)
		require.NotErrorIs(t, err, sluice.ErrNotFound, op)
		require.NotErrorIs(t, err, sluice.ErrNotHeld, op)
	}
	// These two go on when their context has ended, and say so.
	start := time.Now()
	require.ErrorIs(t, k.Unlock(systest.Ended()), sluice.ErrUnknown)
	require.Less(t, time.Since(start), 50*time.Millisecond+10*lag())
	start = time.Now()
	require.NoError(t, l.UnlockAll(systest.Ended())) // nothing is held any more
	require.Less(t, time.Since(start), 50*time.Millisecond+10*lag())
}

// TestHungServer_CallsEndAndNoLockStays stops a real server's process for three seconds: a
// time shorter than the client's read timeout, and one longer. What the server finds in its
// sockets when it goes on, it carries out; no lock of the test's may stay for it.
func TestHungServer_CallsEndAndNoLockStays(t *testing.T) {
	t.Parallel()
	const outage = 3 * time.Second
	for _, timeout := range []time.Duration{outage + 2*time.Second, outage / 3} {
		for _, auto := range []bool{false, true} {
			t.Run(fmt.Sprintf("timeout %v, autopipeline %v", timeout, auto), func(t *testing.T) {
				t.Parallel()
				s := redistest.Start(t)
				single := systest.Dial(t, redis.Options{Addr: s.Addr, ReadTimeout: timeout})
				rdb, name := redis.UniversalClient(single), redistest.Name(t)
				if auto {
					pipeliner, err := single.AutoPipeline()
					require.NoError(t, err)
					t.Cleanup(func() { _ = pipeliner.Close() })
					rdb = pipeliner
				}
				l := systest.NewLocker(t, rdb, sluice.WithTTL(time.Minute))
				q := systest.NewQueue(t, rdb, sluice.WithDeadLimit(1))
				k, err := l.Lock(t.Context(), name)
				require.NoError(t, err)

				s.Pause(t)
				paused := time.Now()
				hangs(t, "other", k, l, q)
				time.Sleep(time.Until(paused.Add(outage))) // the outage
				s.Resume(t)
				keys := systest.Dial(t, redis.Options{Addr: s.Addr})
				var left []string
				require.Eventually(t, func() bool {
					var err error
					left, err = keys.Keys(t.Context(), "Lock:*").Result()
					return err == nil && len(left) == 0
				}, 10*time.Second, 10*time.Millisecond, "abandoned locks stay: %q", &left)
			})
		}
	}
}

// TestHungServer_ThatNeverAnswered is a server that accepts connections and says nothing at
// all.
func TestHungServer_ThatNeverAnswered(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	rdb := redis.NewClient(&redis.Options{Addr: listener.Addr().String()})
	defer func() { _ = rdb.Close() }()
	l, err := sluice.NewLocker(rdb)
	require.NoError(t, err)
	start, lag := time.Now(), systest.Lag(t)
	_, err = l.Lock(systest.Within(t, 100*time.Millisecond), "a")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(start), 150*time.Millisecond+10*lag())
}

// TestHungServer_RefusedConnectionIsADefiniteError: every operation is ErrUnavailable on a
// server that is down, at once; those that wait for a lock when their context ends.
func TestHungServer_RefusedConnectionIsADefiniteError(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := systest.Dial(t, redis.Options{Addr: s.Addr, DialerRetries: 1})
	l, q := systest.NewLocker(t, rdb, sluice.WithTTL(time.Minute)), systest.NewQueue(t, rdb, sluice.WithDeadLimit(1))
	k, err := l.Lock(t.Context(), "held")
	require.NoError(t, err)
	s.Down()
	require.Error(t, rdb.Ping(t.Context()).Err()) // what was connected
	operations := calls("a", k, l, q)
	for _, op := range []string{"lock", "do"} {
		err := operations[op](systest.Within(t, 200*time.Millisecond))
		require.ErrorIs(t, err, context.DeadlineExceeded, op)
		require.ErrorIs(t, err, sluice.ErrUnavailable, op)
		require.NotErrorIs(t, err, sluice.ErrUnknown, op)
		require.NotErrorIs(t, err, sluice.ErrLocked, op)
		delete(operations, op)
	}
	unavailable := func(op string, run func(context.Context) error) {
		err := run(t.Context())
		assert.ErrorIs(t, err, sluice.ErrUnavailable, op)
		assert.NotErrorIs(t, err, sluice.ErrUnknown, op)
		assert.NotErrorIs(t, err, sluice.ErrLocked, op)
		assert.NotErrorIs(t, err, sluice.ErrNotHeld, op)
	}
	var all sync.WaitGroup // at once: each tries for about a second
	for op, run := range operations {
		all.Go(func() { unavailable(op, run) })
	}
	all.Wait()
	unavailable("unlock all", l.UnlockAll) // after it, all that is asked about the lock is ErrClosed
}

// TestLocker_JanitorSparesThePool: cleaning up after one call on a server that hangs must
// not use up the pool.
func TestLocker_JanitorSparesThePool(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, PoolSize: 10, ReadTimeout: 500 * time.Millisecond})
	defer func() { _ = rdb.Close() }()
	l := systest.NewLocker(t, rdb)
	systest.Warm(t, l, "a")
	s.Pause(t)
	_, err := l.Lock(systest.Within(t, 10*time.Millisecond), "a")
	require.ErrorIs(t, err, sluice.ErrUnknown)
	time.Sleep(2500 * time.Millisecond) // beyond the read timeout, so that there were several tries
	stats := rdb.PoolStats()
	require.LessOrEqual(t, stats.TotalConns-stats.IdleConns, uint32(2))
	s.Resume(t)
}
