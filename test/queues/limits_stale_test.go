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
		old, err := q.Claim(ctx, 1, 500*time.Millisecond)
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
