package sluice_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/internal/systest/operations"
)

// TestShards_AnotherNumberIsInvalid: nothing is done by any operation, in either direction.
func TestShards_AnotherNumberIsInvalid(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			systest.EachQueue(t, func(b systest.QueueTest) {
				b.Enqueue(sluice.Added, sluice.Task{ID: "a", Payload: []byte("p")})
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
						require.Equal(b, before, operations.State(b.T, b.RDB, b.Key), "%s with %d has changed something", op.Name, wrong)
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
