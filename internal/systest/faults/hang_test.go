package faults

import (
	"context"
	"errors"
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
	"github.com/sluice-go/sluice/internal/systest/operations"
)

// prepared are the operations that their context bounds, with one Locker for all.
func prepared(t *testing.T, rdb redis.UniversalClient, l *sluice.Locker) (table []operations.Ready) {
	t.Helper()
	for _, op := range operations.Table {
		if op.Lost == operations.GoesOn || op.Lost == operations.Local || op.EndsLocker() {
			continue
		}
		f := operations.New(t, rdb)
		f.Locker, f.Queue = l, systest.NewQueue(t, rdb)
		table = append(table, op.Ready(t, f))
	}
	return table
}

// hangs runs every operation with a context of 100ms while nothing is answered. Each must
// return soon after that, and none may claim to know what it does not.
func hangs(t *testing.T, l *sluice.Locker, table []operations.Ready) {
	t.Helper()
	lag := systest.Lag(t)
	for _, op := range table {
		ctx, bound, want := systest.Within(t, 100*time.Millisecond), 150*time.Millisecond, context.DeadlineExceeded
		if op.Outlives { // it goes on when its context has ended, and says so
			ctx, bound, want = systest.Ended(), 50*time.Millisecond, sluice.ErrUnknown
		}
		if op.Lost == operations.Unavailable {
			want = sluice.ErrUnavailable
		}
		start := time.Now()
		_, err := op.Do(ctx)
		require.Less(t, time.Since(start), bound+10*lag(), op.Name)
		require.ErrorIs(t, err, want, op.Name)
		for _, never := range []error{sluice.ErrLocked, sluice.ErrStale, sluice.ErrNotFound, sluice.ErrNotHeld} {
			require.NotErrorIs(t, err, never, op.Name)
		}
	}
	start := time.Now()
	require.ErrorIs(t, l.UnlockAll(systest.Ended()), sluice.ErrUnknown)
	require.Less(t, time.Since(start), 50*time.Millisecond+10*lag())
}

// TestHungServer_CallsEndAndNoLockStays stops a real server's process for four seconds: a
// time shorter than the client's read timeout, and one longer. What the server finds in its
// sockets when it goes on, it carries out; no lock of the test's may stay for it.
func TestHungServer_CallsEndAndNoLockStays(t *testing.T) {
	t.Parallel()
	const outage = 4 * time.Second
	for _, timeout := range []time.Duration{outage + 2*time.Second, outage / 3} {
		for _, auto := range []bool{false, true} {
			t.Run(fmt.Sprintf("timeout %v, autopipeline %v", timeout, auto), func(t *testing.T) {
				t.Parallel()
				s := redistest.Start(t)
				single := systest.Dial(t, redis.Options{Addr: s.Addr, ReadTimeout: timeout})
				rdb := redis.UniversalClient(single)
				if auto {
					pipeliner, err := single.AutoPipeline()
					require.NoError(t, err)
					t.Cleanup(func() { _ = pipeliner.Close() })
					rdb = pipeliner
				}
				l := systest.NewLocker(t, rdb, sluice.WithTTL(time.Minute))
				if auto { // the other kind of lock
					l = systest.NewLocker(t, rdb, sluice.WithTTL(time.Minute), sluice.WithPermits(3))
				}
				table := prepared(t, rdb, l)

				s.Pause(t)
				paused := time.Now()
				hangs(t, l, table)
				time.Sleep(time.Until(paused.Add(outage))) // the rest of the outage
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
	redistest.NotShort(t)
	t.Parallel()
	s := redistest.Start(t)
	rdb := systest.Dial(t, redis.Options{Addr: s.Addr, DialerRetries: 1})
	l := systest.NewLocker(t, rdb, sluice.WithTTL(time.Minute))
	table := prepared(t, rdb, l)
	s.Down()
	require.Error(t, rdb.Ping(t.Context()).Err()) // what was connected
	var all sync.WaitGroup                        // at once: each tries for about a second
	for _, op := range table {
		all.Go(func() {
			ctx, waits := t.Context(), op.Lost == operations.Replaced && op.Name != "Locker.TryLock"
			if waits {
				ctx = systest.Within(t, 4*time.Second) // a busy machine refuses a connection late
			}
			_, err := op.Do(ctx)
			assert.ErrorIs(t, err, sluice.ErrUnavailable, op.Name)
			assert.Equal(t, waits, errors.Is(err, context.DeadlineExceeded), op.Name)
			for _, never := range []error{sluice.ErrUnknown, sluice.ErrLocked, sluice.ErrNotHeld} {
				assert.NotErrorIs(t, err, never, op.Name)
			}
		})
	}
	all.Wait()
	require.ErrorIs(t, l.UnlockAll(t.Context()), sluice.ErrUnavailable)
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
	require.Eventually(t, func() bool { // or the context has ended before anything was sent
		_, err := l.Lock(systest.Within(t, 10*time.Millisecond), "a")
		return errors.Is(err, sluice.ErrUnknown)
	}, 20*time.Second, time.Millisecond)
	require.Never(t, func() bool { // beyond the read timeout, so that there are several tries
		stats := rdb.PoolStats()
		return stats.TotalConns-stats.IdleConns > 2
	}, 2500*time.Millisecond, 5*time.Millisecond)
	s.Resume(t)
}
