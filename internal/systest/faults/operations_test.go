package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/internal/systest/operations"
)

// TestFullServer_FinishesWhatIsThere: at maxmemory what is there can still be finished, and what is
// refused changes nothing.
func TestFullServer_FinishesWhatIsThere(t *testing.T) {
	t.Parallel()
	for _, auto := range []bool{false, true} {
		s := *redistest.Start(t)
		s.AutoPipeline = auto
		ctx, rdb := t.Context(), s.Client(t)
		full := func(maxmemory int) { require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", fmt.Sprint(maxmemory)).Err()) }
		requireRefused := func(err error, op string) {
			var server redis.Error
			require.ErrorAs(t, err, &server, op)
			require.ErrorContains(t, err, "OOM", op)
			require.NotErrorIs(t, err, sluice.ErrUnknown, op)
			require.NotErrorIs(t, err, sluice.ErrLocked, op)
		}
		operations.EachKind(func(kind string, op operations.Operation, options ...sluice.LockOption) {
			f := operations.New(t, rdb, options...)
			op.Prepare(t, f)
			before := operations.State(t, rdb, f.Name)
			full(1)
			value, err := op.Call(ctx, f)
			full(0)
			if op.Adds {
				requireRefused(err, kind)
				operations.Same(t, before, operations.State(t, rdb, f.Name), kind)
				return
			}
			require.NoError(t, err, kind)
			require.False(t, operations.FoundNothing(value), kind)
		})

		q := systest.NewQueue(t, rdb)
		_, err := q.Enqueue(ctx, sluice.Task{ID: "a", Payload: []byte("p")})
		require.NoError(t, err)
		full(1)
		require.NoError(t, q.Pause(ctx, time.Minute))
		paused, err := q.Claim(ctx, 1, time.Minute)
		require.NoError(t, err)
		require.Empty(t, paused)
		require.NoError(t, q.Resume(ctx))
		es, err := q.Claim(ctx, 1, time.Minute)
		require.NoError(t, err)
		_, err = q.Enqueue(ctx, sluice.Task{ID: "a", Payload: []byte("p")})
		requireRefused(err, "enqueue a leased one")
		found, err := q.Reschedule(ctx, "a", time.Hour)
		require.NoError(t, err)
		require.True(t, found)
		require.NoError(t, q.Dequeue(ctx, es...))

		full(0) // an ended permit does not keep another from being given up
		permits := systest.NewLocker(t, rdb, sluice.WithPermits(2), sluice.WithFencing())
		permit, err := permits.Lock(ctx, "p")
		require.NoError(t, err)
		require.NoError(t, rdb.ZAdd(ctx, "Lock:p", redis.Z{Score: 1, Member: "ended"}).Err())
		full(1)
		_, err = permits.TryLock(ctx, "p")
		requireRefused(err, "a second permit")
		require.NoError(t, permit.Extend(ctx, time.Minute))
		require.NoError(t, permit.Unlock(ctx))
		require.Zero(t, rdb.ZScore(ctx, "Lock:p", permit.Token()).Val())
	}
}

// TestFullServer_RefusesEachMergedCall: calls that are sent together are refused to each caller and
// leave nothing, while what is there is claimed and finished.
func TestFullServer_RefusesEachMergedCall(t *testing.T) {
	t.Parallel()
	const callers, each = 32, 20
	rdb := redistest.Start(t).Client(t)
	ctx, q := t.Context(), systest.NewQueue(t, rdb)
	together := func(f func(id string)) {
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for j := range each {
					f(fmt.Sprintf("%d-%d", i, j))
				}
			})
		}
		all.Wait()
	}
	together(func(id string) {
		_, err := q.Enqueue(ctx, sluice.Task{ID: id, Payload: []byte("p")})
		require.NoError(t, err)
	})
	require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	var claimed atomic.Int64
	together(func(id string) {
		_, err := q.Enqueue(ctx, sluice.Task{ID: "new " + id, Payload: []byte("p")})
		require.ErrorContains(t, err, "OOM")
		require.NotErrorIs(t, err, sluice.ErrUnknown)
		es, err := q.Claim(ctx, 1, time.Minute)
		require.NoError(t, err)
		claimed.Add(int64(len(es)))
		require.NoError(t, q.Dequeue(ctx, es...))
	})
	require.Equal(t, int64(callers*each), claimed.Load())
	require.Len(t, rdb.Keys(ctx, "*").Val(), 1, "a key is left, beside the counts")
}

// TestPool_ThatIsExhaustedIsEachMergedCallersError: and nothing was sent.
func TestPool_ThatIsExhaustedIsEachMergedCallersError(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := systest.Dial(t, redis.Options{Addr: s.Addr, PoolSize: 1, PoolTimeout: 20 * time.Millisecond})
	q := systest.NewQueue(t, rdb)
	conn := rdb.Conn()
	require.NoError(t, conn.Ping(t.Context()).Err()) // it has the connection
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			_, err := q.Enqueue(systest.Within(t, time.Second), sluice.Task{ID: fmt.Sprint(i)})
			require.Error(t, err)
			require.NotErrorIs(t, err, sluice.ErrUnknown)
		})
	}
	all.Wait()
	require.Zero(t, s.Client(t).DBSize(t.Context()).Val())
	require.NoError(t, conn.Close())
	for i := range 40 {
		all.Go(func() {
			_, err := q.Enqueue(systest.Within(t, time.Minute), sluice.Task{ID: fmt.Sprint(i)})
			for errors.Is(err, sluice.ErrUnavailable) { // 40 callers for one connection: on a busy machine one may wait for longer than 20 ms
				_, err = q.Enqueue(systest.Within(t, time.Minute), sluice.Task{ID: fmt.Sprint(i)})
			}
			require.NoError(t, err)
		})
	}
	all.Wait()
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(40), stats.Due)
}

// TestErrors_DoNotRepeatArguments: a server that repeats a command's arguments in its error
// must not make us repeat them.
func TestErrors_DoNotRepeatArguments(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--rename-command", "EVALSHA", "", "--rename-command", "EVAL", "")
	rdb := s.Client(t)
	l, q := systest.NewLocker(t, rdb), systest.NewQueue(t, rdb)
	_, err := l.TryLock(t.Context(), "a")
	require.ErrorContains(t, err, "unknown command")
	require.NotContains(t, err.Error(), "15000")
	_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a", Payload: []byte("s3cret")})
	require.ErrorContains(t, err, "unknown command")
	require.NotContains(t, err.Error(), "s3cret")
	var server redis.Error
	require.ErrorAs(t, err, &server)
}

// The tests of these names are of statements in docs/operations.md that no other test
// makes.

// TestOperations_PoolOfOneIsEnough: one connection is enough for everything at once, since
// nothing holds it for longer than a command. Pub/sub has one of its own.
func TestOperations_PoolOfOneIsEnough(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, ctx := systest.Dial(t, redis.Options{Addr: s.Addr, PoolSize: 1}), t.Context()
	l, q := systest.NewLocker(t, rdb, sluice.WithRetryInterval(time.Hour)), systest.NewQueue(t, rdb)
	other := systest.NewLocker(t, rdb, sluice.WithRetryInterval(time.Hour))
	var done atomic.Int64
	w := &sluice.Worker{Queue: q, Concurrency: 64, Lease: time.Second, Handler: func(ctx context.Context, e sluice.Entry) error {
		turn := l
		if done.Load()%2 == 0 {
			turn = other
		}
		return turn.Do(ctx, "a", func(context.Context) error { done.Add(1); return nil }, sluice.WithFencing())
	}}
	working, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(working) }()
	for i := range 200 {
		_, err := q.Enqueue(ctx, sluice.Task{ID: string(rune('0' + i))})
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return done.Load() >= 200 }, time.Minute, 10*time.Millisecond)
	require.Less(t, systest.Connections(t, s.Client(t)), 12) // its own, pub/sub, and the test's
	stop()
	require.NoError(t, <-ended)
}

// TestOperations_EvictionLosesLocksOnly: a full server whose policy is to evict keys that
// have a TTL evicts locks. Their holders learn so when they ask, and not before.
func TestOperations_EvictionLosesLocksOnly(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--maxmemory-policy", "volatile-ttl")
	rdb, ctx := s.Client(t), t.Context()
	k, err := systest.NewLocker(t, rdb).TryLock(ctx, "a")
	require.NoError(t, err)
	_, err = systest.NewQueue(t, rdb).Enqueue(ctx, sluice.Task{ID: "a"})
	require.NoError(t, err)
	require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	require.ErrorContains(t, rdb.Set(ctx, "x", "y", 0).Err(), "OOM")
	require.True(t, k.Valid())
	require.ErrorIs(t, k.Extend(ctx, time.Minute), sluice.ErrNotHeld)
	require.Len(t, rdb.Keys(ctx, "*").Val(), 1) // the queue, which has none
}

// TestOperations_RestartFromABackup: what is restored are the tasks as they were then,
// those that have been finished since included. Fences go on upwards without their counter.
func TestOperations_RestartFromABackup(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, ctx := s.Client(t), t.Context()
	l, q := systest.NewLocker(t, rdb), systest.NewQueue(t, rdb)
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
