package sluice_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestShards_AnotherNumberIsInvalid: nothing is done by any operation, in either direction.
func TestShards_AnotherNumberIsInvalid(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			systest.EachQueue(t, func(b systest.QueueTest) {
				ctx := b.Context()
				b.Enqueue(sluice.Added, sluice.Task{ID: "a", Payload: []byte("p")})
				before := contents(b, n)
				for _, wrong := range []int{1, 2, 8} {
					if wrong == n {
						continue
					}
					for name, op := range shardOperations(func() *sluice.Queue { return b.On(b.RDB, sluice.WithShards(wrong)) }) {
						err := op(ctx)
						require.ErrorIs(b, err, sluice.ErrInvalid, "%s with %d", name, wrong)
						require.NotErrorIs(b, err, sluice.ErrCorrupt, "%s with %d", name, wrong)
						require.ErrorContains(b, err, fmt.Sprintf("%d shards, not %d", n, wrong))
						require.Equal(b, before, contents(b, n), "%s with %d has changed something", name, wrong)
					}
				}
				b.ClaimOne(time.Minute)
			}, sluice.WithShards(n))
		})
	}
}

// contents returns what a queue of n shards has.
func contents(b systest.QueueTest, n int) (all []string) {
	keys := []string{b.Key, "{" + b.Key + "}:dead", "{" + b.Key + "}:layout", "{" + b.Key + "}:tasks", "{" + b.Key + "}:state"}
	for _, of := range []int{2, 3, 8} {
		for i := range of {
			keys = append(keys, shardKey(b, of, i), keyspace.Companion(shardKey(b, of, i), keyspace.Tasks))
		}
	}
	for _, key := range keys {
		all = append(all, b.RDB.Dump(b.Context(), key).Val())
	}
	return all
}

// shardOperations is each operation, of a new queue each.
func shardOperations(queue func() *sluice.Queue) map[string]func(ctx context.Context) error {
	e := sluice.Entry{ID: "a", Score: 1}
	return map[string]func(ctx context.Context) error{
		"enqueue":    func(ctx context.Context) error { _, err := queue().Enqueue(ctx, sluice.Task{ID: "a"}); return err },
		"batch":      func(ctx context.Context) error { _, err := queue().EnqueueBatch(ctx, spread(3, 2)); return err },
		"claim":      func(ctx context.Context) error { _, err := queue().Claim(ctx, 1, time.Minute); return err },
		"pop":        func(ctx context.Context) error { _, err := queue().Pop(ctx, 1); return err },
		"peek":       func(ctx context.Context) error { _, err := queue().Peek(ctx, 1); return err },
		"dead":       func(ctx context.Context) error { _, err := queue().Dead(ctx, sluice.Entry{}, 1); return err },
		"revive":     func(ctx context.Context) error { _, err := queue().Revive(ctx, "a"); return err },
		"stats":      func(ctx context.Context) error { _, err := queue().Stats(ctx); return err },
		"get":        func(ctx context.Context) error { _, err := queue().Get(ctx, "a"); return err },
		"cancel":     func(ctx context.Context) error { _, err := queue().Cancel(ctx, "a"); return err },
		"drop":       func(ctx context.Context) error { _, err := queue().Drop(ctx, "a"); return err },
		"reschedule": func(ctx context.Context) error { _, err := queue().Reschedule(ctx, "a", time.Hour); return err },
		"dequeue":    func(ctx context.Context) error { return queue().Dequeue(ctx, e) },
		"retry":      func(ctx context.Context) error { return queue().Retry(ctx, e, 0) },
		"release":    func(ctx context.Context) error { return queue().Release(ctx, e) },
		"bury":       func(ctx context.Context) error { return queue().Bury(ctx, e, "") },
		"extend":     func(ctx context.Context) error { return queue().Extend(ctx, e, time.Minute) },
		"keep alive": func(ctx context.Context) error {
			return queue().KeepAlive(ctx, e, time.Minute, func(context.Context) error { return nil })
		},
		"pause":  func(ctx context.Context) error { return queue().Pause(ctx, 0) },
		"resume": func(ctx context.Context) error { return queue().Resume(ctx) },
		"list": func(ctx context.Context) error {
			_, err := queue().List(ctx, sluice.Leased, sluice.Entry{}, 1)
			return err
		},
		"check": func(ctx context.Context) error { return queue().Check(ctx) },
		"purge": func(ctx context.Context) error { return queue().Purge(ctx) },
		"wait":  func(ctx context.Context) error { return queue().Wait(ctx) },
		"run": func(ctx context.Context) error {
			w := &sluice.Worker{Queue: queue(), Handler: func(context.Context, sluice.Entry) error { return nil }}
			return w.Run(ctx)
		},
	}
}

// TestShards_ForeignClientsAreRefused: a plain ZADD to the key of one shard is an error.
func TestShards_ForeignClientsAreRefused(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.Added, sluice.Task{ID: "a"})
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
				for op, do := range shardOperations(func() *sluice.Queue { return b.On(b.RDB, sluice.WithShards(2)) }) {
					if op != "run" { // a Worker goes on trying
						require.ErrorIs(b, do(systest.Within(b.T, 10*time.Second)), sluice.ErrCorrupt, op)
					}
				}
			}, sluice.WithShards(2))
		})
	}
}
