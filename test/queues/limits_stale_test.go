package queues

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestLimits_AStaleFinishFreesNoPlace to the claim that goes with it: another one has the task.
func TestLimits_AStaleFinishFreesNoPlace(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb := t.Context(), s.Client(t)
		q, err := sluice.NewQueue(rdb, redistest.Name(t))
		require.NoError(t, err)
		require.NoError(t, q.SetLimits(ctx, sluice.Limits{Running: 2}))
		_, err = q.Enqueue(ctx, sluice.Task{ID: "a"})
		require.NoError(t, err)
		old, err := q.Claim(ctx, 1, 3*time.Second)
		require.NoError(t, err)
		require.Len(t, old, 1)
		require.Eventually(t, func() bool {
			stats, err := q.Stats(ctx)
			require.NoError(t, err)
			return stats.Leased == 0
		}, time.Minute, 20*time.Millisecond)
		_, err = q.EnqueueBatch(ctx, []sluice.Task{{ID: "b"}, {ID: "c"}})
		require.NoError(t, err)
		now, err := q.Claim(ctx, 3, time.Hour)
		require.NoError(t, err)
		require.Len(t, now, 2)
		stale := store.Item{ID: old[0].ID, Receipt: store.ScoreText(old[0].Score)}
		reply, err := systest.EngineOf(q).Executor.Run(ctx, systest.EngineOf(q).Store.Exchange([]store.Item{stale}, store.Claim{N: 1, Lease: time.Hour}))
		require.NoError(t, err)
		x, err := store.DecodeExchange(reply.Value, 1)
		require.NoError(t, err)
		require.Equal(t, []store.Answer{store.Stale}, x.Answers)
		require.Empty(t, x.Tasks)
		require.True(t, x.Limited)
	})
}

// TestLimits_ALeaseOffTheListFreesNoPlace: while the server's clock was ahead, claims have swept a
// lease that has not ended by the clock as it is now. Its place is another's.
func TestLimits_ALeaseOffTheListFreesNoPlace(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		q, err := sluice.NewQueue(rdb, name)
		require.NoError(t, err)
		require.NoError(t, q.SetLimits(ctx, sluice.Limits{Running: 2}))
		_, err = q.EnqueueBatch(ctx, []sluice.Task{{ID: "a"}, {ID: "b"}, {ID: "c"}, {ID: "d"}, {ID: "e"}})
		require.NoError(t, err)
		claim := func(n int) []sluice.Entry {
			t.Helper()
			es, err := q.Claim(ctx, 5, time.Hour)
			require.NoError(t, err)
			require.Len(t, es, n)
			return es
		}
		es := claim(2)
		require.NoError(t, rdb.ZRem(ctx, "{Queue:"+name+"}:leased", es[0].ID).Err())
		claim(1)
		exchange := func(e sluice.Entry) []store.Task {
			t.Helper()
			done := store.Item{ID: e.ID, Receipt: store.ScoreText(e.Score)}
			reply, err := systest.EngineOf(q).Executor.Run(ctx, systest.EngineOf(q).Store.Exchange([]store.Item{done}, store.Claim{N: 5, Lease: time.Hour}))
			require.NoError(t, err)
			x, err := store.DecodeExchange(reply.Value, 1)
			require.NoError(t, err)
			return x.Tasks
		}
		require.Empty(t, exchange(es[0]))
		require.Len(t, exchange(es[1]), 1, "that one was on the list")
	})
}
