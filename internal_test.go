package sluice

import (
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestQueue_ClaimReturnsTheLastReceiptOfAnID: a server whose clock is set forward in the
// middle of a Claim hands out again what the same Claim has.
func TestQueue_ClaimReturnsTheLastReceiptOfAnID(t *testing.T) {
	t.Parallel()
	c := claiming{lease: time.Minute}
	c.add(time.Now().Add(-time.Minute), time.Now().Add(-time.Minute), []Entry{{ID: "late", Score: 1}, {ID: "a", Score: 1}})
	c.add(time.Now(), time.Now(), []Entry{{ID: "a", Score: 2}, {ID: "b", Score: 2}})
	c.add(time.Now(), time.Now(), []Entry{{ID: "c", Score: 3}, {ID: "a", Score: 3}})
	valid, late := c.sort()
	require.Equal(t, []Entry{{ID: "b", Score: 2}, {ID: "c", Score: 3}, {ID: "a", Score: 3}}, valid)
	require.Equal(t, []Entry{{ID: "late", Score: 1}}, late)
}

// TestQueue_AsksEachShardOnce, though it goes on to have a task that is due, as one that no claim takes has.
func TestQueue_AsksEachShardOnce(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	q, err := NewQueue(rdb, "q", WithShards(4))
	require.NoError(t, err)
	for i := range 100 {
		_, err := q.Enqueue(t.Context(), Task{ID: strconv.Itoa(i)})
		require.NoError(t, err)
	}
	asked := map[*shard]int{}
	require.NoError(t, q.inShards(t.Context(), 1, time.Second, func(s *shard, _ int) (int, bool, error) {
		asked[s]++
		return 0, asked[s] > 9, nil
	}))
	require.Len(t, asked, 4)
	for _, times := range asked {
		require.Equal(t, 1, times)
	}
}
