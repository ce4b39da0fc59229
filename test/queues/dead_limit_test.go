package queues

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// die enqueues tasks, and buries each.
func die(b systest.QueueTest, ids ...string) {
	b.Helper()
	for _, id := range ids {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id, Payload: []byte("secret")})
		b.Bury(b.ClaimOne(time.Minute), "hopeless")
	}
}

// plantOld adds dead letters that died an hour ago and earlier, the first one last.
func plantOld(b systest.QueueTest, n int) {
	b.Helper()
	pipe, now := b.RDB.Pipeline(), b.Now()
	for i := range n {
		id := fmt.Sprint("old-", i)
		pipe.ZAdd(b.Context(), "{"+b.Key+"}:dead", redis.Z{Score: now - 3600 - float64(i), Member: id})
		pipe.HSet(b.Context(), "{"+b.Key+"}:state", id, "3:dead:hopeless")
		pipe.HSet(b.Context(), "{"+b.Key+"}:tasks", id, "p")
	}
	_, err := pipe.Exec(b.Context())
	require.NoError(b, err)
}

func TestQueue_DeadLimitDropsTheOldest(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		die(b, "a", "b", "c")
		require.Equal(b, []string{"a", "b", "c"}, systest.IDs(b.Dead(10)))
		page, err := b.Q.List(ctx, sluice.StateDead, sluice.TaskInfo{}, 1)
		require.NoError(b, err)
		die(b, "d", "e")
		require.Equal(b, []string{"c", "d", "e"}, systest.IDs(b.Dead(10)), "the burials have dropped the others, and nothing else had to")
		rest, err := b.Q.List(ctx, sluice.StateDead, page[0], 10)
		require.NoError(b, err)
		require.Equal(b, []string{"c", "d", "e"}, systest.IDs(rest), "a cursor whose letter was dropped goes on")
		require.Equal(b, sluice.Stats{Dead: 3, Trimmed: 2}, b.Stats())
		_, err = b.Q.Get(ctx, "a")
		require.ErrorIs(b, err, sluice.ErrNotFound)
		for _, companion := range []string{"tasks", "state"} {
			require.EqualValues(b, 3, b.RDB.HLen(ctx, "{"+b.Key+"}:"+companion).Val(), companion)
		}

		// What others remove does not count, and Purge leaves the count.
		n, err := b.Q.Drop(ctx, "c")
		require.NoError(b, err)
		require.Equal(b, 1, n)
		b.Revive(1, "d")
		require.NoError(b, b.Q.Dequeue(ctx, b.ClaimOne(time.Minute)))
		require.NoError(b, b.Q.Purge(ctx))
		require.Equal(b, sluice.Stats{Trimmed: 2}, b.Stats())

		// A task that a foreign producer has put back is no dead letter, and stays.
		die(b, "w", "x", "y")
		require.NoError(b, b.RDB.ZAdd(ctx, b.Key, redis.Z{Score: b.Now() + 3600, Member: "w"}).Err())
		e := b.Get("x")
		die(b, "z")
		require.Equal(b, "secret", string(b.Get("w").Payload))
		require.Equal(b, e, b.Get("x"))
		require.Equal(b, sluice.Stats{Scheduled: 1, Dead: 3, Trimmed: 2, NextDue: b.Stats().NextDue}, b.Stats())
	}, sluice.WithDeadLimit(3))
}

// TestQueue_DeadAgeDropsWhatIsOld: beside a burial, and once a Worker says that it lives. What
// reads, and what claims without a burial, drops nothing.
func TestQueue_DeadAgeDropsWhatIsOld(t *testing.T) {
	redistest.NotShort(t)
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		die(b, "new")
		plantOld(b, 170)
		for range 3 {
			require.Equal(b, sluice.Stats{Dead: 171}, b.Stats())
			require.Empty(b, b.Claim(1, time.Minute))
			popped, err := b.Q.Pop(ctx, 1)
			require.NoError(b, err)
			require.Empty(b, popped)
		}
		die(b, "newer")
		require.Equal(b, sluice.Stats{Dead: 71, Trimmed: 101}, b.Stats(), "one was buried")
		stop := working(b, &sluice.Worker{Queue: b.On(b.RDB), Handler: nothing})
		b.Eventually(func() bool { return len(workersOf(b)) == 1 })
		stop()
		require.Equal(b, sluice.Stats{Dead: 71, Trimmed: 101}, b.Stats(), "a Queue without the option drops nothing")
		stop = working(b, &sluice.Worker{Queue: b.Q, Handler: nothing})
		b.Eventually(func() bool { return b.Stats().Dead == 2 })
		stop()
		require.Equal(b, sluice.Stats{Dead: 2, Trimmed: 170}, b.Stats())
		require.Equal(b, []string{"new", "newer"}, systest.IDs(b.Dead(10)))
		for _, companion := range []string{"tasks", "state"} {
			require.EqualValues(b, 2, b.RDB.HLen(ctx, "{"+b.Key+"}:"+companion).Val(), companion)
		}
	}, sluice.WithDeadAge(30*time.Minute))
}

// TestQueue_TrimmedCountsEachLetterOnce: however many Workers drop at the same time.
func TestQueue_TrimmedCountsEachLetterOnce(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		plantOld(b, 400)
		for range 8 {
			defer working(b, &sluice.Worker{Queue: b.On(b.RDB, sluice.WithDeadAge(time.Minute)), Handler: nothing})()
		}
		b.Eventually(func() bool { return b.Stats().Dead == 0 })
		require.Equal(b, sluice.Stats{Trimmed: 400}, b.Stats())
	})
}

// TestWorker_NeedsNoDeadLetters: a Worker says that it lives, and forgets what is over, whatever
// the key of the dead letters is.
func TestWorker_NeedsNoDeadLetters(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		require.NoError(b, b.RDB.Set(b.Context(), "{"+b.Key+"}:dead", "another's", 0).Err())
		require.NoError(b, b.RDB.ZAdd(b.Context(), "{"+b.Key+"}:done", redis.Z{Score: b.Now() - 7200, Member: "old"}).Err())
		stop := working(b, &sluice.Worker{Queue: b.Q, Handler: nothing, Logger: slog.New(slog.DiscardHandler)})
		b.Eventually(func() bool { return len(workersOf(b)) == 1 })
		require.Equal(b, "another's", b.RDB.Get(b.Context(), "{"+b.Key+"}:dead").Val())
		require.Zero(b, b.RDB.ZCard(b.Context(), "{"+b.Key+"}:done").Val())
		stop()
		require.Empty(b, workersOf(b))
	}, sluice.WithDeadLimit(1), sluice.WithDeadAge(time.Hour), sluice.WithRetention(time.Hour))
}

// TestWorker_MayBeDeniedToDrop: a user that may not remove fields is seen to work, and its letters
// stay whole.
func TestWorker_MayBeDeniedToDrop(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := systest.NewQueueTest(t, s.Client(t), "q", sluice.WithDeadLimit(1))
	plantOld(b, 3)
	require.NoError(t, b.RDB.Do(t.Context(), "ACL", "SETUSER", "denied", "on", ">pw", "~*", "&*", "+@all", "-hdel").Err())
	denied := redis.NewClient(&redis.Options{Addr: s.Addr, Username: "denied", Password: "pw"})
	t.Cleanup(func() { _ = denied.Close() })
	stop := working(b, &sluice.Worker{Queue: b.On(denied, sluice.WithDeadLimit(1)), Handler: nothing})
	b.Eventually(func() bool { return len(workersOf(b)) == 1 })
	require.Equal(t, sluice.Stats{Dead: 3}, b.Stats())
	stop()
	require.Empty(t, workersOf(b))
	require.Equal(t, sluice.Stats{Dead: 3}, b.Stats())
}

// TestQueue_DeadLimitWorksOnAFullServer: a burial there makes room, and so does a Worker.
func TestQueue_DeadLimitWorksOnAFullServer(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	b := systest.NewQueueTest(t, rdb, "q", sluice.WithDeadLimit(1))
	for _, id := range []string{"a", "b"} {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id})
	}
	leased := b.Claim(2, time.Minute)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	for _, e := range leased {
		b.Bury(e, "hopeless")
	}
	require.Equal(t, sluice.Stats{Dead: 1, Trimmed: 1}, b.Stats())
	require.Equal(t, []string{"b"}, systest.IDs(b.Dead(10)))

	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	plantOld(b, 170)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	defer working(b, &sluice.Worker{Queue: b.Q, Handler: nothing})()
	b.Eventually(func() bool { return b.Stats().Dead == 1 })
	require.Equal(t, []string{"b"}, systest.IDs(b.Dead(10)))
	require.Len(t, workersOf(b), 1)
}

// TestQueue_CountsAreNotNeeded: what cannot be counted is done all the same, and a key of another
// type is left.
func TestQueue_CountsAreNotNeeded(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		require.NoError(b, b.RDB.Set(b.Context(), "{"+b.Key+"}:counts", "x", 0).Err())
		die(b, "a", "b")
		require.Len(b, b.Dead(10), 1)
		_, err := b.Q.Stats(b.Context())
		require.ErrorIs(b, err, sluice.ErrCorrupt)
		require.NoError(b, b.RDB.Del(b.Context(), "{"+b.Key+"}:counts").Err())
		require.Equal(b, sluice.Stats{Dead: 1}, b.Stats())
	}, sluice.WithDeadLimit(1))
}

// mostDead watches how many dead letters the queue has, until the function that it returns is
// called: that returns the most that it saw.
func mostDead(b systest.QueueTest) func() int64 {
	stop, most := make(chan struct{}), make(chan int64)
	go func() {
		for seen := int64(0); ; {
			seen = max(seen, b.RDB.ZCard(context.Background(), "{"+b.Key+"}:dead").Val())
			select {
			case <-stop:
				most <- seen
				return
			case <-b.Context().Done():
				return
			case <-time.After(100 * time.Microsecond):
			}
		}
	}()
	return func() int64 {
		close(stop)
		return <-most
	}
}

// working runs a worker until the function that it returns is called.
func working(b systest.QueueTest, w *sluice.Worker) func() {
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	return func() {
		b.Helper()
		stop()
		require.NoError(b, <-ended)
	}
}

// plantUsedUp adds due tasks that were claimed once.
func plantUsedUp(b systest.QueueTest, n int) {
	b.Helper()
	pipe := b.RDB.Pipeline()
	for i := range n {
		id := fmt.Sprint("used-", i)
		pipe.ZAdd(b.Context(), b.Key, redis.Z{Score: b.Now() - 60, Member: id})
		pipe.HSet(b.Context(), "{"+b.Key+"}:state", id, "1::")
		pipe.HSet(b.Context(), "{"+b.Key+"}:tasks", id, "p")
	}
	_, err := pipe.Exec(b.Context())
	require.NoError(b, err)
}

// TestWorker_KeepsDeadLimit: at every moment, however many tasks die at a time.
func TestWorker_KeepsDeadLimit(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		n := b.Sized(3000)
		ts := make([]sluice.Task, n)
		for i := range ts {
			ts[i] = sluice.Task{ID: fmt.Sprint(i), Payload: []byte("p")}
		}
		_, err := b.Q.EnqueueBatch(b.Context(), ts)
		require.NoError(b, err)
		most, plain := mostDead(b), b.On(b.RDB)
		stop := working(b, &sluice.Worker{
			Queue: b.Q, Concurrency: 500,
			Handler: func(context.Context, sluice.Entry) error { return sluice.Permanent(errors.New("no")) },
		})
		require.Eventually(b, func() bool {
			s, err := plain.Stats(b.Context())
			return err == nil && s.Dead+s.Trimmed == int64(n)
		}, 30*time.Second, 5*time.Millisecond)
		stop()
		require.LessOrEqual(b, most(), int64(10))
		stats, err := plain.Stats(b.Context())
		require.NoError(b, err)
		require.Equal(b, sluice.Stats{Dead: 10, Trimmed: int64(n) - 10}, systest.Standing(stats))
		for _, companion := range []string{"tasks", "state"} {
			require.EqualValues(b, 10, b.RDB.HLen(b.Context(), "{"+b.Key+"}:"+companion).Val(), companion)
		}
	}, sluice.WithDeadLimit(10))
}

// TestQueue_ClaimsKeepDeadLimit: what buries tasks whose attempts are used up drops as many.
func TestQueue_ClaimsKeepDeadLimit(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		n, plain := b.Sized(3000), b.On(b.RDB)
		plantUsedUp(b, n)
		most := mostDead(b)
		require.Empty(b, b.Claim(10, time.Minute))
		stop := working(b, &sluice.Worker{Queue: b.Q, Handler: func(context.Context, sluice.Entry) error { return nil }})
		require.Eventually(b, func() bool {
			stats, err := plain.Stats(b.Context())
			return err == nil && stats.Due == 0
		}, 30*time.Second, 5*time.Millisecond)
		stop()
		require.LessOrEqual(b, most(), int64(10))
		stats, err := plain.Stats(b.Context())
		require.NoError(b, err)
		require.Equal(b, sluice.Stats{Dead: 10, Trimmed: int64(n) - 10}, systest.Standing(stats))
	}, sluice.WithDeadLimit(10), sluice.WithMaxAttempts(1))
}

// TestQueue_ManyClientsKeepDeadLimit, whichever of them buries.
func TestQueue_ManyClientsKeepDeadLimit(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		const n = 400
		ts := make([]sluice.Task, n)
		for i := range ts {
			ts[i] = sluice.Task{ID: fmt.Sprint(i)}
		}
		_, err := b.Q.EnqueueBatch(b.Context(), ts)
		require.NoError(b, err)
		plain := b.On(b.RDB)
		var all sync.WaitGroup
		for range 4 {
			q := b.On(b.RDB, sluice.WithDeadLimit(9))
			all.Go(func() {
				for es, err := q.Claim(b.Context(), 10, time.Minute); len(es) > 0; es, err = q.Claim(b.Context(), 10, time.Minute) {
					for _, e := range es {
						err = errors.Join(err, q.Bury(b.Context(), "no", e))
						stats, failed := plain.Stats(b.Context())
						if err = errors.Join(err, failed); err != nil || stats.Dead > 9 {
							b.Error(stats, err)
							return
						}
					}
				}
			})
		}
		all.Wait()
		stats := b.Stats()
		require.Equal(b, sluice.Stats{Dead: 9, Trimmed: n - 9}, systest.Standing(stats))
	}, sluice.WithDeadLimit(9))
}

// TestWorker_IdleDropsAll: one that has nothing to do drops what a new limit does not allow, in
// steps of 250ms, and what becomes too old within 15 seconds.
func TestWorker_IdleDropsAll(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		b := systest.NewQueueTest(t, rdb, "q", sluice.WithDeadLimit(100), sluice.WithDeadAge(70*time.Minute)) // the youngest is an hour old
		plain := b.On(rdb)
		plantOld(b, 3000)
		defer time.Sleep(time.Minute) // so that what lingers has ended
		stop := working(b, &sluice.Worker{Queue: b.Q, Handler: func(context.Context, sluice.Entry) error { return nil }})
		defer stop()
		time.Sleep(2 * time.Second)
		stats, err := plain.Stats(t.Context())
		require.NoError(t, err)
		require.InDelta(t, 600, stats.Trimmed, 200, "it has begun within a second, and drops a hundred at a time")
		time.Sleep(15 * time.Second)
		stats, err = plain.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, sluice.Stats{Dead: 100, Trimmed: 2900}, systest.Standing(stats))
		time.Sleep(10 * time.Minute) // the youngest have been too old for 17 seconds
		stats, err = plain.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, sluice.Stats{Trimmed: 3000}, systest.Standing(stats))
	})
}
