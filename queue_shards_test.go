package sluice_test

import (
	"context"
	"fmt"
	"hash/crc32"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/internal/systest/operations"
)

// shardKey returns the main key of a shard of b's queue.
func shardKey(b systest.QueueTest, n, i int) string { return keyspace.Shard(b.Key, n, i) }

// shardOf returns in which of n shards a task is.
func shardOf(id string, n int) int { return int(crc32.ChecksumIEEE([]byte(id)) % uint32(n)) }

// idsIn returns so many IDs of tasks in each of n shards.
func idsIn(n, each int) (ids [][]string) {
	ids = make([][]string, n)
	for i, full := 0, 0; full < n; i++ {
		id := fmt.Sprint("task", i)
		if at := shardOf(id, n); len(ids[at]) < each {
			if ids[at] = append(ids[at], id); len(ids[at]) == each {
				full++
			}
		}
	}
	return ids
}

// spread returns tasks of which each of n shards has so many, one after the other.
func spread(n, each int) (tasks []sluice.Task) {
	ids := idsIn(n, each)
	for i := range each {
		for _, of := range ids {
			tasks = append(tasks, sluice.Task{ID: of[i], Payload: []byte("of " + of[i])})
		}
	}
	return tasks
}

// claimAll claims as many tasks as are due: a Claim of many may leave some to the next, on a slow machine.
func claimAll(b systest.QueueTest, n int) (all []sluice.Entry) {
	b.Helper()
	for {
		some := b.Claim(10*n, time.Minute)
		if all = append(all, some...); len(all) >= n {
			require.Len(b, all, n)
			require.Equal(b, n, systest.DifferentIDs(all))
			return all
		}
		require.NoError(b, b.Q.Wait(b.Context()))
	}
}

// TestShards_ATaskIsInTheShardOfItsID, as a client in any language can tell, and in no other.
func TestShards_ATaskIsInTheShardOfItsID(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, tasks := b.Context(), spread(3, 5)
		outcomes, err := b.Q.EnqueueBatch(ctx, tasks)
		require.NoError(b, err)
		require.Equal(b, slices.Repeat([]sluice.Outcome{sluice.OutcomeAdded}, len(tasks)), outcomes)
		for i := range 3 {
			ids := b.RDB.ZRange(ctx, shardKey(b, 3, i), 0, -1).Val()
			require.Len(b, ids, 5)
			for _, id := range ids {
				require.Equal(b, i, shardOf(id, 3))
			}
		}
		for _, task := range tasks {
			b.Enqueue(sluice.OutcomeUpdated, task)
		}
		require.Equal(b, int64(len(tasks)), b.Stats().Due, "an ID is in the queue once")
	}, sluice.WithShards(3))
}

// TestShards_ByID: what names a task works on it wherever it is.
func TestShards_ByID(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		for _, of := range idsIn(3, 1) {
			id := of[0]
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id, Payload: []byte(id), Delay: time.Hour})
			require.Equal(b, id, string(b.Get(id).Payload))
			found, err := b.Q.Reschedule(ctx, id, 0)
			require.NoError(b, err)
			require.True(b, found)
			e := b.ClaimOne(time.Minute)
			require.Equal(b, id, e.ID)
			require.NoError(b, b.Q.Extend(ctx, e, time.Hour))
			require.NoError(b, b.Q.Retry(ctx, e, 0, "failed"))
			e = b.ClaimOne(time.Minute)
			require.Equal(b, 2, e.Attempt)
			require.NoError(b, b.Q.Release(ctx, e))
			e = b.ClaimOne(time.Minute)
			require.Equal(b, 2, e.Attempt)
			require.NoError(b, b.Q.KeepAlive(ctx, e, time.Minute, func(context.Context) error { return nil }))
			b.Bury(e, "why")
			require.Equal(b, "why", b.Dead(10)[0].Reason)
			b.Revive(1, id)
			require.NoError(b, b.Q.Dequeue(ctx, b.ClaimOne(time.Minute)))
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id})
			state, err := b.Q.Cancel(ctx, id)
			require.NoError(b, err)
			require.Equal(b, sluice.StateDue, state)
			_, err = b.Q.Get(ctx, id)
			require.ErrorIs(b, err, sluice.ErrNotFound)
		}
	}, sluice.WithShards(3))
}

// TestShards_SettleNamesAllThatAreStale.
func TestShards_SettleNamesAllThatAreStale(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		for name, settle := range map[string]func(es ...sluice.Entry) error{
			"dequeue": func(es ...sluice.Entry) error { return b.Q.Dequeue(ctx, es...) },
			"release": func(es ...sluice.Entry) error { return b.Q.Release(ctx, es...) },
		} {
			require.NoError(b, b.Q.Purge(ctx))
			_, err := b.Q.EnqueueBatch(ctx, spread(3, 4))
			require.NoError(b, err)
			es := claimAll(b, 12)
			var stale []string
			for i := range es {
				if i%2 == 0 {
					es[i].Score++
					stale = append(stale, es[i].ID)
				}
			}
			var is *sluice.StaleError
			require.ErrorAs(b, settle(es...), &is, name)
			require.ElementsMatch(b, stale, is.IDs, name)
			require.NoError(b, settle())
		}
	}, sluice.WithShards(3))
}

// TestShards_CountAndList: what reads all tasks reads all shards, in order, a page as large as is asked for.
func TestShards_CountAndList(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, tasks, start := b.Context(), spread(3, b.Sized(200)), time.Now().Add(-time.Hour).Truncate(time.Second)
		for i := range tasks {
			tasks[i].At = start.Add(time.Duration(i%50) * time.Second) // many of the same time
		}
		_, err := b.Q.EnqueueBatch(ctx, tasks)
		require.NoError(b, err)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "later", Delay: time.Hour})
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "latest", Delay: 2 * time.Hour})
		s := b.Stats()
		require.Equal(b, int64(len(tasks)), s.Due)
		require.Equal(b, int64(2), s.Scheduled)
		require.Greater(b, s.OldestDue, 59*time.Minute)
		require.WithinDuration(b, time.Now().Add(time.Hour), s.NextDue, time.Minute)

		all, err := b.Q.Peek(ctx, 10_000)
		require.NoError(b, err)
		require.Len(b, all, len(tasks))
		require.Equal(b, len(tasks), systest.DifferentIDs(all))
		require.True(b, slices.IsSortedFunc(all, func(x, y sluice.Entry) int { return int((x.Score - y.Score) * 1e6) }))
		for _, n := range []int{1, 2, 17, 50, 59} {
			some, err := b.Q.Peek(ctx, n)
			require.NoError(b, err)
			require.Equal(b, all[:n], some)
		}
		claimed := claimAll(b, len(tasks))
		for _, e := range claimed {
			b.Bury(e, "why "+e.ID)
		}
		letters := b.Dead(10_000)
		require.Len(b, letters, len(tasks))
		require.True(b, slices.IsSortedFunc(letters, func(x, y sluice.TaskInfo) int { return x.DiedAt.Compare(y.DiedAt) }))
		require.Equal(b, letters[:30], b.Dead(30))
		ids := []string{"none"}
		for _, letter := range letters {
			require.Equal(b, "why "+letter.ID, letter.Reason)
			ids = append(ids, letter.ID)
		}
		b.Revive(len(tasks), ids...)
		require.NoError(b, b.Q.Purge(ctx))
		require.Zero(b, b.Stats())
		for i := range 3 {
			require.Zero(b, b.RDB.Exists(ctx, shardKey(b, 3, i)).Val())
		}
	}, sluice.WithShards(3))
}

// TestShards_Pop takes each task once, of all shards.
func TestShards_Pop(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		_, err := b.Q.EnqueueBatch(b.Context(), spread(3, 10))
		require.NoError(b, err)
		var all []sluice.Entry
		for _, n := range []int{1, 1, 8, 100} {
			popped, err := b.Q.Pop(b.Context(), n)
			require.NoError(b, err)
			require.Len(b, popped, min(n, 30-len(all)))
			all = append(all, popped...)
		}
		require.Equal(b, 30, systest.DifferentIDs(all))
		popped, err := b.Q.Pop(b.Context(), 1)
		require.NoError(b, err)
		require.Empty(b, popped)
	}, sluice.WithShards(3))
}

// TestShards_WaitEndsForATaskOfAnyShard.
func TestShards_WaitEndsForATaskOfAnyShard(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		for _, of := range idsIn(3, 1) {
			waited := make(chan error, 1)
			go func() { waited <- b.Q.Wait(b.Context()) }()
			other := b.On(b.RDB, sluice.WithShards(3))
			_, err := other.Enqueue(b.Context(), sluice.Task{ID: of[0], Delay: 10 * time.Millisecond})
			require.NoError(b, err)
			select {
			case err := <-waited:
				require.NoError(b, err)
			case <-time.After(30 * time.Second):
				b.Fatal("Wait did not end")
			}
			require.NoError(b, b.Q.Dequeue(b.Context(), b.ClaimOne(time.Minute)))
		}
		ctx, cancel := context.WithTimeout(b.Context(), 100*time.Millisecond)
		defer cancel()
		ends := 0
		for b.Q.Wait(ctx) == nil { // for what it was told of a task that it has claimed by then
			ends++
		}
		require.ErrorIs(b, ctx.Err(), context.DeadlineExceeded)
		require.LessOrEqual(b, ends, 3)
	}, sluice.WithShards(3), sluice.WithPollInterval(time.Hour))
}

// TestShards_AWakeUpIsPassedOn: one caller is told by two shards, and another one has the second task.
func TestShards_AWakeUpIsPassedOn(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		const callers = 6
		got := make(chan string, callers)
		for range callers {
			go func() {
				for {
					if err := b.Q.Wait(b.Context()); err != nil {
						return
					}
					es, err := b.Q.Claim(b.Context(), 1, time.Minute)
					if err != nil {
						return
					}
					for _, e := range es {
						got <- e.ID
					}
				}
			}()
		}
		for range 5 {
			tasks := spread(3, 2)
			for i := range tasks {
				tasks[i].Delay = 10 * time.Millisecond
			}
			_, err := b.Q.EnqueueBatch(b.Context(), tasks)
			require.NoError(b, err)
			for range tasks {
				select {
				case <-got:
				case <-time.After(30 * time.Second):
					b.Fatal("a task was forgotten")
				}
			}
			require.NoError(b, b.Q.Purge(b.Context()))
		}
	}, sluice.WithShards(3), sluice.WithPollInterval(time.Hour))
}

// TestShards_AWorkerServesAll, and learns of tasks that are cancelled.
func TestShards_AWorkerServesAll(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		tasks := spread(3, b.Sized(100))
		_, err := b.Q.EnqueueBatch(b.Context(), tasks)
		require.NoError(b, err)
		begun, ended := make(chan string, 3), make(chan error, 3)
		systest.StartWorker(b.T, &sluice.Worker{Queue: b.Q, Lease: time.Minute, Handler: func(ctx context.Context, e sluice.Entry) error {
			if !strings.HasPrefix(string(e.Payload), "of") {
				begun <- e.ID
				<-ctx.Done()
				ended <- context.Cause(ctx)
			}
			return nil
		}})
		b.RequireDrained()
		for _, of := range idsIn(3, 1) {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: of[0]})
			id := <-begun
			_, err := b.Q.Cancel(b.Context(), id)
			require.NoError(b, err)
			require.ErrorIs(b, <-ended, sluice.ErrCanceled)
		}
	}, sluice.WithShards(3))
}

// TestShards_OutcomesOfABatchAreInItsOrder, also when the chunks of some shards fail.
func TestShards_OutcomesOfABatchAreInItsOrder(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		tasks := spread(3, 200)
		for i := 0; i < len(tasks); i += 7 {
			b.Enqueue(sluice.OutcomeAdded, tasks[i])
		}
		outcomes, err := b.Q.EnqueueBatch(b.Context(), tasks)
		require.NoError(b, err)
		for i, outcome := range outcomes {
			want := sluice.OutcomeAdded
			if i%7 == 0 {
				want = sluice.OutcomeUpdated
			}
			require.Equal(b, want, outcome, i)
		}
		require.NoError(b, b.Q.Purge(b.Context()))
		broken := shardKey(b, 3, 1)
		require.NoError(b, b.RDB.Set(b.Context(), broken, "foreign", 0).Err())
		outcomes, err = b.Q.EnqueueBatch(b.Context(), tasks)
		require.ErrorIs(b, err, sluice.ErrCorrupt)
		require.Len(b, outcomes, len(tasks))
		for i, task := range tasks {
			want := sluice.OutcomeAdded
			if shardOf(task.ID, 3) == 1 {
				want = 0
			}
			require.Equal(b, want, outcomes[i])
		}
	}, sluice.WithShards(3))
}

// TestShards_ALargeBatchEndsWithItsContext, before all of it is sorted by shards: by the memory that this takes, as the time depends
// on the machine.
func TestShards_ALargeBatchEndsWithItsContext(t *testing.T) {
	q, err := sluice.NewQueue(redistest.Mini(t).Client(t), redistest.Name(t), sluice.WithShards(4))
	require.NoError(t, err)
	tasks, entries := make([]sluice.Task, 100_000), make([]sluice.Entry, 100_000)
	for i := range tasks {
		tasks[i].ID = strconv.Itoa(i)
		entries[i] = sluice.Entry{ID: tasks[i].ID, Attempt: 1, Score: 1}
	}
	_, err = q.EnqueueBatch(t.Context(), tasks[:9]) // the number of shards is known now
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	outcomes, err := q.EnqueueBatch(ctx, tasks)
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(len(tasks)*10))
	require.Nil(t, outcomes)
	runtime.ReadMemStats(&before)
	require.ErrorIs(t, q.Dequeue(ctx, entries...), context.Canceled)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(len(tasks)*200), "544 bytes a task where all are sorted")
	require.ErrorIs(t, q.Dequeue(ctx, make([]sluice.Entry, 1)...), sluice.ErrInvalid, "what is wrong is said all the same")
}

// TestShards_IDsAreSpreadEvenly over the shards, within what chance explains, for IDs as people use them.
func TestShards_IDsAreSpreadEvenly(t *testing.T) {
	t.Parallel()
	const ids = 100_000
	for name, id := range map[string]func(i int) string{
		"numbers": func(i int) string { return fmt.Sprint(i) },
		"prefix":  func(i int) string { return fmt.Sprintf("order:%d:cancel", i) },
		"padded":  func(i int) string { return fmt.Sprintf("%012d", i*1000) },
		"hex":     func(i int) string { return fmt.Sprintf("%x", uint64(i)*0x9E3779B97F4A7C15) },
	} {
		hashes := make([]uint32, ids)
		for i := range hashes {
			hashes[i] = crc32.ChecksumIEEE([]byte(id(i)))
		}
		for _, n := range []uint32{2, 3, 6, 7, 8, 16, 64, 256} {
			counts := make([]float64, n)
			for _, hash := range hashes {
				counts[hash%n]++
			}
			expected, chi := float64(ids)/float64(n), 0.0
			for _, count := range counts {
				chi += (count - expected) * (count - expected) / expected
			}
			// Of a uniform choice it is n-1 about, with a deviation of sqrt(2(n-1)).
			require.Less(t, chi, float64(n)+12*float64(n), "%s in %d shards", name, n)
			require.Less(t, slices.Max(counts), 1.15*expected+50, "%s in %d shards", name, n)
		}
	}
}

// TestShards_AnotherNumberIsInvalid: nothing is done by any operation, in either direction.
func TestShards_AnotherNumberIsInvalid(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			systest.EachQueue(t, func(b systest.QueueTest) {
				b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("p")})
				before := operations.State(b.T, b.RDB, b.Key)
				for _, wrong := range []int{1, 2, 8} {
					if wrong == n {
						continue
					}
					for _, op := range operations.OfQueues() {
						_, err := op.Call(b.Context(), ofShards(b, wrong))
						require.ErrorIs(b, err, sluice.ErrInvalid, "%s with %d", op.Name, wrong)
						require.NotErrorIs(b, err, sluice.ErrCorrupt, "%s with %d", op.Name, wrong)
						require.ErrorContains(b, err, fmt.Sprintf("%d shards, not %d", n, wrong))
						operations.Same(b, before, operations.State(b.T, b.RDB, b.Key), "%s with %d has changed something", op.Name, wrong)
					}
				}
				b.ClaimOne(time.Minute)
			}, sluice.WithShards(n))
		})
	}
}

// ofShards is the queue for an operation, as a new Queue with n shards.
func ofShards(b systest.QueueTest, n int) *operations.Fixture {
	return &operations.Fixture{Queue: b.On(b.RDB, sluice.WithShards(n)), Entry: sluice.Entry{ID: "a", Score: 1}}
}

// TestShards_ForeignClientsAreRefused: a plain ZADD to the key of one shard is an error.
func TestShards_ForeignClientsAreRefused(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		require.ErrorContains(b, b.RDB.ZAdd(b.Context(), b.Key, redis.Z{Score: 1, Member: "php"}).Err(), "WRONGTYPE")
		require.Equal(b, "sluice: this queue has 3 shards", b.RDB.Get(b.Context(), b.Key).Val())
	}, sluice.WithShards(3))
}

// TestShards_ClientsThatComeTogetherAgree on the number that one of them has recorded.
func TestShards_ClientsThatComeTogetherAgree(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		type result struct {
			n   int
			err error
		}
		results := make(chan result, 24)
		for i := range cap(results) {
			n := 2 + i%3
			q := b.On(b.RDB, sluice.WithShards(n))
			go func() {
				_, err := q.Enqueue(b.Context(), sluice.Task{ID: fmt.Sprint(i)})
				results <- result{n, err}
			}()
		}
		won, refused := map[int]bool{}, 0
		for range cap(results) {
			if r := <-results; r.err != nil {
				require.ErrorIs(b, r.err, sluice.ErrInvalid)
				refused++
			} else {
				won[r.n] = true
			}
		}
		require.Len(b, won, 1)
		require.Equal(b, 16, refused)
	})
}

func TestQueue_NameIsTheOneItWasMadeWith(t *testing.T) {
	t.Parallel()
	q, err := sluice.NewQueue(redis.NewClient(&redis.Options{}), "{eu}:orders", sluice.WithQueuePrefix("Q:"))
	require.NoError(t, err)
	require.Equal(t, "{eu}:orders", q.Name())
}

// TestShards_ADamagedRecordIsCorrupt: no number of shards that a queue cannot have is believed.
func TestShards_ADamagedRecordIsCorrupt(t *testing.T) {
	for name, record := range map[string][]any{
		"no shards":       {"shards", 0},
		"fewer than none": {"shards", -3},
		"too many":        {"shards", 3_000_000},
		"no number":       {"shards", "many"},
	} {
		t.Run(name, func(t *testing.T) {
			systest.EachQueue(t, func(b systest.QueueTest) {
				require.NoError(b, b.RDB.HSet(b.Context(), "{"+b.Key+"}:layout", record...).Err())
				for _, op := range operations.OfQueues() {
					if op.Lost != operations.GoesOn {
						_, err := op.Call(systest.Within(b.T, 10*time.Second), ofShards(b, 2))
						require.ErrorIs(b, err, sluice.ErrCorrupt, op.Name)
					}
				}
			}, sluice.WithShards(2))
		})
	}
}
