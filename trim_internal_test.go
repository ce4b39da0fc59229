package sluice

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

// TestQueue_ReshardKeepsTheCountOfDropped: at each step of a move, also for a client that knows nothing of it,
// and if the last steps are carried out twice.
func TestQueue_ReshardKeepsTheCountOfDropped(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb := t.Context(), s.Client(t)
		name := redistest.Name(t)
		q, err := NewQueue(rdb, name, WithDeadLimit(1))
		require.NoError(t, err)
		other, err := NewQueue(rdb, name)
		require.NoError(t, err)
		n, sum := 0, int64(0)
		count := func() {
			t.Helper()
			for _, q := range []*Queue{q, other} {
				stats, err := q.Stats(ctx)
				require.NoError(t, err)
				require.Equal(t, sum, stats.Dropped)
			}
		}
		die := func() {
			t.Helper()
			for range 12 {
				n++
				before, err := q.Stats(ctx)
				require.NoError(t, err)
				_, err = q.Enqueue(ctx, Task{ID: fmt.Sprint(n)})
				require.NoError(t, err)
				claimed, err := q.Claim(ctx, 1, time.Minute)
				require.NoError(t, err)
				require.Len(t, claimed, 1)
				require.NoError(t, q.Bury(ctx, claimed[0], "hopeless"))
				after, err := q.Stats(ctx)
				require.NoError(t, err)
				require.Equal(t, before.Dead+1, after.Dead+after.Dropped-before.Dropped)
				sum = after.Dropped
			}
		}
		die()
		require.EqualValues(t, 11, sum)
		count()
		for _, shards := range []int{3, 1, 2, 1} {
			l, err := q.begin(ctx, shards)
			require.NoError(t, err)
			count()
			require.NoError(t, q.moveAll(ctx, l, nil))
			stats, err := q.Stats(ctx) // may drop what the new shards have too much
			require.NoError(t, err)
			sum = stats.Dropped
			count()
			for range 2 {
				require.NoError(t, q.carryDropped(ctx, l))
				count()
			}
			require.NoError(t, q.end(ctx, l))
			count()
			if len(l.from.shards) > 1 {
				q.forgetDropped(ctx, l.from)
			}
			count()
			require.NoError(t, q.Reshard(ctx, shards, nil))
			count()
			die()
			count()
		}
		require.Greater(t, sum, int64(40))
		for _, shards := range []int{4, 2, 1} {
			require.NoError(t, q.Reshard(ctx, shards, nil))
			stats, err := q.Stats(ctx)
			require.NoError(t, err)
			require.GreaterOrEqual(t, stats.Dropped, sum)
			sum = stats.Dropped
			count()
		}
		keys, err := rdb.Keys(ctx, "*"+name+"*:dropped").Result()
		require.NoError(t, err)
		require.LessOrEqual(t, len(keys), 1, "the counts of former shards are gone")
	})
}

// TestQueue_CarriedCountDoesNotFall: a mover that comes late finds some of the former shards' counts gone.
func TestQueue_CarriedCountDoesNotFall(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx := t.Context()
		q, err := NewQueue(s.Client(t), redistest.Name(t), WithShards(3), WithDeadLimit(3))
		require.NoError(t, err)
		for i := range 30 {
			_, err := q.Enqueue(ctx, Task{ID: strconv.Itoa(i)})
			require.NoError(t, err)
		}
		claimed, err := q.Claim(ctx, 30, time.Minute)
		require.NoError(t, err)
		for _, e := range claimed {
			require.NoError(t, q.Bury(ctx, e, "hopeless"))
		}
		dropped := func() int64 {
			stats, err := q.Stats(ctx)
			require.NoError(t, err)
			return stats.Dropped
		}
		sum := dropped()
		require.Greater(t, sum, int64(20))
		l, err := q.begin(ctx, 2)
		require.NoError(t, err)
		require.NoError(t, q.moveAll(ctx, l, nil))
		require.NoError(t, q.carryDropped(ctx, l))
		require.NoError(t, q.end(ctx, l))
		sum = max(sum, dropped())
		_, err = q.executor.Run(ctx, scriptReshardDropped.Request(l.from.shards[0].countedKeys, ""))
		require.NoError(t, err)
		require.NoError(t, q.carryDropped(ctx, l))
		require.Equal(t, sum, dropped())
	})
}

// TestQueue_CarriedCountIsNotLostByALateMover: a mover that was stopped may write the count again, not into a closed shard.
func TestQueue_CarriedCountIsNotLostByALateMover(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx := t.Context()
		q, err := NewQueue(s.Client(t), redistest.Name(t))
		require.NoError(t, err)
		_, err = q.Get(ctx, "none")
		require.ErrorIs(t, err, ErrNotFound)
		l, err := q.begin(ctx, 2)
		require.NoError(t, err)
		late := scriptReshardDropped.Request(l.shards[0].countedKeys, 7)
		require.NoError(t, q.Reshard(ctx, 2, nil))
		require.NoError(t, q.Reshard(ctx, 3, nil))
		_, err = q.executor.Run(ctx, late)
		require.Error(t, err)
		stats, err := q.Stats(ctx)
		require.NoError(t, err)
		require.Zero(t, stats.Dropped)
	})
}
