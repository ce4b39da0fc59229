package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestReshard_TasksStayAsTheyAre, in every state, from each number of shards to the next and back to one.
// One client that was made before goes on, and so do receipts.
func TestReshard_TasksStayAsTheyAre(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		b.Enqueue(sluice.Added, sluice.Task{ID: "leased", Payload: []byte("1")})
		leased := b.ClaimOne(time.Hour)
		b.Enqueue(sluice.Added, sluice.Task{ID: "waiting", Payload: []byte("2")})
		waiting := b.ClaimOne(time.Hour)
		b.Enqueue(sluice.Deferred, sluice.Task{ID: "waiting", Payload: []byte("new"), Delay: time.Hour})
		b.Enqueue(sluice.Added, sluice.Task{ID: "dead", Payload: []byte("3")})
		b.Bury(b.ClaimOne(time.Hour), "reason")
		b.Enqueue(sluice.Added, sluice.Task{ID: "retried"})
		require.NoError(b, b.Q.Retry(ctx, b.ClaimOne(time.Hour), time.Hour))
		for i := range 15 {
			b.Enqueue(sluice.Added, sluice.Task{ID: fmt.Sprint("due", i), Payload: []byte{0, byte(i), 255}})
			b.Enqueue(sluice.Added, sluice.Task{ID: fmt.Sprint("later", i), Delay: time.Hour})
		}
		foreignAdd(b, "foreign", b.Now()-1)
		ids := []string{"leased", "waiting", "dead", "retried", "foreign"}
		for i := range 15 {
			ids = append(ids, fmt.Sprint("due", i), fmt.Sprint("later", i))
		}
		before, was := readAll(b, ids), rawKeys(b)
		for _, n := range []int{3, 8, 2, 1} {
			var last sluice.ReshardProgress
			require.NoError(b, b.Q.Reshard(ctx, n, func(p sluice.ReshardProgress) { last = p }))
			require.Equal(b, sluice.ReshardProgress{Moved: int64(len(ids))}, last)
			require.Equal(b, before, readAll(b, ids), "in %d shards", n)
		}
		require.Equal(b, was, rawKeys(b), "the keys of one shard")
		require.NoError(b, b.Q.Dequeue(ctx, leased, waiting))
		next, err := b.Q.Get(ctx, "waiting")
		require.NoError(b, err)
		require.Equal(b, sluice.Scheduled, next.State)
		require.Equal(b, "new", string(next.Payload))
		b.Revive(1, "dead")
	})
}

// readAll returns what Get says of tasks; of the dead, what Dead says.
func readAll(b systest.QueueTest, ids []string) map[string]any {
	b.Helper()
	all := map[string]any{}
	for _, id := range ids {
		e, err := b.Q.Get(b.Context(), id)
		require.NoError(b, err, id)
		all[id] = e
	}
	return all
}

// rawKeys returns the sorted sets and hashes of the queue's one shard.
func rawKeys(b systest.QueueTest) []any {
	b.Helper()
	var all []any
	for _, key := range []string{b.Key, "{" + b.Key + "}:dead"} {
		z, err := b.RDB.ZRangeWithScores(b.Context(), key, 0, -1).Result()
		require.NoError(b, err)
		all = append(all, z)
	}
	for _, key := range []string{"{" + b.Key + "}:tasks", "{" + b.Key + "}:state"} {
		h, err := b.RDB.HGetAll(b.Context(), key).Result()
		require.NoError(b, err)
		all = append(all, h)
	}
	return all
}

// TestReshard_UnderLoad: producers, workers and loops of one's own go on while the queue is moved, by
// movers of which each first one is stopped on the way. Each task is handled, and none twice.
func TestReshard_UnderLoad(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		var handled reshardLog
		n := b.Sized(3000)
		ctx, stop := context.WithCancel(b.Context())
		var producers, consumers sync.WaitGroup
		for _, name := range []string{"a", "b", "c"} {
			q := inTouch(b)
			producers.Go(func() {
				for _, task := range tasksNamed(name, n/3) {
					task.Delay = time.Duration(rand.N(50)) * time.Millisecond
					outcome, err := q.Enqueue(b.Context(), task)
					require.NoError(b, err)
					require.Equal(b, sluice.Added, outcome)
				}
			})
		}
		for range 2 {
			q := inTouch(b)
			systest.StartWorker(b.T, &sluice.Worker{Queue: q, Concurrency: 8, Handler: func(_ context.Context, e sluice.Entry) error {
				handled.note(e)
				return nil
			}})
		}
		own := inTouch(b)
		consumers.Go(func() { handled.consume(ctx, own) })
		for _, n := range []int{3, 8, 2, 1} {
			first, cancel := context.WithCancel(b.Context())
			err := b.Q.Reshard(first, n, func(sluice.ReshardProgress) { cancel() })
			cancel()
			if err != nil {
				require.ErrorIs(b, err, context.Canceled)
			}
			require.NoError(b, b.On(b.RDB, sluice.WithShards(n)).Reshard(b.Context(), n, nil))
		}
		producers.Wait()
		b.RequireDrained()
		stop()
		consumers.Wait()
		require.Equal(b, n/3*3, len(handled.ids)) //nolint:testifylint // the IDs would fill pages
		for id, times := range handled.ids {
			require.Equal(b, 1, times, id)
		}
	})
}

// inTouch returns the same queue, which has found it in one shard.
func inTouch(b systest.QueueTest) *sluice.Queue {
	q := b.On(b.RDB)
	_, err := q.Stats(b.Context())
	require.NoError(b, err)
	return q
}

// reshardLog is how often tasks were handled.
type reshardLog struct {
	mu  sync.Mutex // guards ids
	ids map[string]int
}

func (l *reshardLog) note(e sluice.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ids == nil {
		l.ids = map[string]int{}
	}
	l.ids[e.ID]++
}

// consume is a loop of one's own.
func (l *reshardLog) consume(ctx context.Context, q *sluice.Queue) {
	for ctx.Err() == nil {
		es, err := q.Claim(ctx, 10, time.Minute)
		for _, e := range es {
			l.note(e)
		}
		for left := es; len(left) > 0; {
			if err = q.Dequeue(context.WithoutCancel(ctx), left...); err == nil || errors.Is(err, sluice.ErrStale) {
				break // a repeated one finds those stale that an earlier one has finished
			}
		}
		if err == nil && len(es) == 0 {
			_ = q.Wait(ctx)
		}
	}
}

// TestReshard_KeepAliveGoesOn while its task is moved there and back, and ends when the task is cancelled.
func TestReshard_KeepAliveGoesOn(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a"})
		require.NoError(t, err)
		es, err := q.Claim(t.Context(), 1, 3*time.Second)
		require.NoError(t, err)
		require.Len(t, es, 1)
		other, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		err = q.KeepAlive(t.Context(), es[0], 3*time.Second, func(ctx context.Context) error {
			for _, n := range []int{8, 3, 1} {
				time.Sleep(10 * time.Second)
				require.NoError(t, context.Cause(ctx))
				require.NoError(t, other.Reshard(t.Context(), n, nil))
			}
			time.Sleep(10 * time.Second)
			require.NoError(t, context.Cause(ctx))
			e, err := other.Get(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, sluice.Leased, e.State)
			return nil
		})
		require.NoError(t, err)
		require.NoError(t, q.Dequeue(t.Context(), es[0]), "the receipt is good")
		time.Sleep(time.Minute)
	})
}

// TestReshard_AnOperationLeavesTheBatchesOfOthersAlone: while a mover has a batch in transit, an operation on a
// task that is neither in it nor left in the shard neither puts nor confirms it. If all operations did that, those
// of many clients would keep each other from coming to an end.
func TestReshard_AnOperationLeavesTheBatchesOfOthersAlone(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		const n = 600
		for part := range slices.Chunk(tasksNamed("t", n), 250) {
			_, err := b.Q.EnqueueBatch(b.Context(), part)
			require.NoError(b, err)
		}
		inTransit := func() int64 {
			return b.RDB.ZCard(b.Context(), keyspace.Companion(b.Key, keyspace.MoveTransit)).Val()
		}
		q, steps := inTouch(b), 0
		err := b.Q.Reshard(b.Context(), 3, func(p sluice.ReshardProgress) {
			if steps++; steps > 2 || p.Left == 0 {
				return
			}
			batch := inTransit()
			require.NotZero(b, batch)
			id := fmt.Sprint("new", steps)
			outcome, err := q.Enqueue(b.Context(), sluice.Task{ID: id})
			require.NoError(b, err)
			require.Equal(b, sluice.Added, outcome)
			_, err = q.Get(b.Context(), id) // it is in a new shard now
			require.NoError(b, err)
			_, err = q.Get(b.Context(), "none")
			require.ErrorIs(b, err, sluice.ErrNotFound)
			require.Equal(b, batch, inTransit(), "the batch was confirmed by another")
			_, err = q.Get(b.Context(), fmt.Sprint("t", n-1)) // which is left
			require.NoError(b, err)
			_, err = q.Get(b.Context(), "t0") // which was moved
			require.NoError(b, err)
		})
		require.NoError(b, err)
		require.NotZero(b, steps)
		require.Equal(b, int64(n+2), b.Stats().Due)
	})
}

// TestReshard_ManyOperationsOfOneClientShareTheirMoves: many goroutines of a client name tasks that are left in one
// shard. Each on its own would put what the others have in transit.
func TestReshard_ManyOperationsOfOneClientShareTheirMoves(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		n := b.Sized(1000)
		for part := range slices.Chunk(tasksNamed("t", 2*n+250), 250) {
			_, err := b.Q.EnqueueBatch(b.Context(), part)
			require.NoError(b, err)
		}
		q := inTouch(b)
		first, cancel := context.WithCancel(b.Context())
		err := b.Q.Reshard(first, 3, func(sluice.ReshardProgress) { cancel() })
		require.ErrorIs(b, err, context.Canceled)
		var sent commandCount
		b.RDB.AddHook(&sent)
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				_, err := q.Get(b.Context(), fmt.Sprint("t", 2*n+249-i)) // the others may have been moved
				require.NoError(b, err)
			})
		}
		all.Wait()
		b.Logf("%.1f commands for each operation", float64(sent.Load())/float64(n))
		require.Less(b, sent.Load(), int64(10*n)) // it is about three
		require.NoError(b, b.Q.Reshard(b.Context(), 3, nil))
		require.Equal(b, int64(2*n+250), b.Stats().Due)
	})
}

// commandCount is a hook that counts commands, those in pipelines too.
type commandCount struct{ atomic.Int64 }

func (*commandCount) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *commandCount) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.Add(1)
		return next(ctx, cmd)
	}
}

func (c *commandCount) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// TestReshard_CountsWhatIsNotMoved, and refuses to purge meanwhile.
func TestReshard_CountsWhatIsNotMoved(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		n := b.Sized(2000)
		for part := range slices.Chunk(tasksNamed("t", n), 250) {
			_, err := b.Q.EnqueueBatch(b.Context(), part)
			require.NoError(b, err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		steps := 0
		err := b.Q.Reshard(ctx, 3, func(p sluice.ReshardProgress) {
			if steps++; steps == 1 {
				cancel()
				require.InDelta(b, n, b.Stats().Due, 250)
			}
		})
		if err != nil { // on a miniredis there may be one batch only
			require.ErrorIs(b, err, context.Canceled)
			require.ErrorIs(b, b.Q.Purge(b.Context()), sluice.ErrUnavailable)
			require.ErrorIs(b, b.Q.Reshard(b.Context(), 5, nil), sluice.ErrInvalid, "another move is under way")
		}
		require.NoError(b, b.Q.Reshard(b.Context(), 3, nil))
		require.Equal(b, int64(n), b.Stats().Due)
		require.NoError(b, b.Q.Purge(b.Context()))
		require.Zero(b, b.Stats().Due)
	})
}

func tasksNamed(prefix string, n int) []sluice.Task {
	tasks := make([]sluice.Task, n)
	for i := range tasks {
		tasks[i].ID = fmt.Sprint(prefix, i)
	}
	return tasks
}

// TestReshard_ByAQueueOfAnyNumber: what moves a queue need not know how many shards it has, and then uses
// those that it has.
func TestReshard_ByAQueueOfAnyNumber(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.Added, sluice.Task{ID: "a"})
		has := 1
		for _, n := range []int{1, 3, 3, 8, 1, 2, 2} {
			for _, made := range []int{1, 2, 3, 8} {
				q := b.On(b.RDB, sluice.WithShards(made))
				require.NoError(b, q.Reshard(b.Context(), n, nil), "of %d shards to %d, by one made with %d", has, n, made)
				has = n
				outcome, err := q.Enqueue(b.Context(), sluice.Task{ID: "a"})
				require.NoError(b, err)
				require.Equal(b, sluice.Updated, outcome, "in %d shards, by one made with %d", has, made)
			}
		}
	})
}

// TestReshard_AWorkerIsToldOfCancellations in the new shards, long before an extension would find out.
func TestReshard_AWorkerIsToldOfCancellations(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		begun, ended := make(chan string, 100), make(chan error, 100)
		q := inTouch(b)
		systest.StartWorker(b.T, &sluice.Worker{Queue: q, Concurrency: 100, Lease: 10 * time.Hour, Handler: func(ctx context.Context, e sluice.Entry) error {
			begun <- e.ID
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return nil
		}})
		for _, n := range []int{3, 1} {
			require.NoError(b, b.Q.Reshard(b.Context(), n, nil))
			told := false
			for i := 0; !told && i < 30; i++ { // until the worker has subscribed
				id := fmt.Sprint(n, ".", i)
				b.Enqueue(sluice.Added, sluice.Task{ID: id})
				require.Equal(b, id, <-begun)
				_, err := b.Q.Cancel(b.Context(), id)
				require.NoError(b, err)
				select {
				case cause := <-ended:
					require.ErrorIs(b, cause, sluice.ErrCanceled)
					told = true
				case <-time.After(time.Second):
				}
			}
			require.True(b, told, "in %d shards", n)
		}
	})
}

// TestReshard_KeepAliveBeginsBesideIt: the queue begins to be moved, and this client learns of it, between the
// first extension and what follows. The task is still where it was.
func TestReshard_KeepAliveBeginsBesideIt(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		plain := systest.BubbleClient(t, systest.BubbleDialer(m))
		defer func() { require.NoError(t, plain.Close()) }()
		other, err := sluice.NewQueue(plain, "q")
		require.NoError(t, err)
		_, err = other.EnqueueBatch(t.Context(), append([]sluice.Task{{ID: "a"}}, tasksNamed("due", 300)...))
		require.NoError(t, err)
		es, err := q.Claim(t.Context(), 1, time.Hour)
		require.NoError(t, err)
		require.Equal(t, "a", es[0].ID)

		moved, goOn, over := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		var began atomic.Bool
		begin := func() {
			if !began.CompareAndSwap(false, true) {
				return
			}
			first := sync.OnceFunc(func() { close(moved); <-goOn })
			go func() { over <- other.Reshard(t.Context(), 3, func(sluice.ReshardProgress) { first() }) }()
			<-moved
			_, err := q.Get(t.Context(), "due0")
			require.NoError(t, err)
		}
		rdb.AddHook(afterScript{begin})
		err = q.KeepAlive(t.Context(), es[0], 3*time.Second, func(ctx context.Context) error {
			time.Sleep(10 * time.Second)
			require.NoError(t, context.Cause(ctx))
			close(goOn)
			require.NoError(t, <-over)
			time.Sleep(10 * time.Second)
			return context.Cause(ctx)
		})
		require.NoError(t, err)
		require.NoError(t, q.Dequeue(t.Context(), es[0]))
		time.Sleep(time.Minute)
	})
}

// afterScript calls a function after each script that is not one of a pipeline.
type afterScript struct{ f func() }

func (afterScript) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h afterScript) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if strings.HasPrefix(cmd.Name(), "eval") && err == nil {
			h.f()
		}
		return err
	}
}

func (afterScript) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
