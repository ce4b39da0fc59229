package faults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// TestLimits_OnAFullServer: they are kept and changed, and so is a pause beside them.
func TestLimits_OnAFullServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	ctx, rdb := t.Context(), s.Client(t)
	q, err := sluice.NewQueue(rdb, "q")
	require.NoError(t, err)
	_, err = q.EnqueueBatch(ctx, []sluice.Task{{ID: "a"}, {ID: "b"}, {ID: "c"}, {ID: "d"}, {ID: "e"}})
	require.NoError(t, err)
	require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	claim := func(want int) {
		es, err := q.Claim(ctx, 5, time.Hour)
		require.NoError(t, err)
		require.Len(t, es, want)
		require.NoError(t, q.Dequeue(ctx, es...))
	}
	require.NoError(t, q.SetLimits(ctx, sluice.Limits{Running: 3, Rate: 1, Per: time.Hour, Burst: 2}))
	claim(2)
	claim(0)
	require.NoError(t, q.Pause(ctx, 0))
	require.NoError(t, q.SetLimits(ctx, sluice.Limits{Rate: 1, Per: time.Hour, Burst: 3}))
	claim(0)
	require.NoError(t, q.Resume(ctx))
	popped, err := q.Pop(ctx, 5)
	require.NoError(t, err)
	require.Len(t, popped, 1, "two of three tokens are spent")
	claim(0)
	require.NoError(t, q.SetLimits(ctx, sluice.Limits{}))
	claim(2)
}
