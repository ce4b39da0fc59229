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

// TestRetention_ADroppedResultIsSaidOfItsTask: a full server refuses the result of a task among
// others that are stale, gone, done without a result, or extended. Each has its own answer, in
// either of the ways in which the script finishes tasks.
func TestRetention_ADroppedResultIsSaidOfItsTask(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	for _, ids := range [][]string{{"stale", "without", "gone", "with", "without2"}, {"stale", "extended", "without", "gone", "with", "without2"}} {
		q, err := sluice.NewQueue(rdb, "q", sluice.WithRetention(time.Hour))
		require.NoError(t, err)
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
		require.NoError(t, rdb.FlushAll(t.Context()).Err())
		for _, id := range ids {
			_, err := q.Enqueue(t.Context(), sluice.Task{ID: id})
			require.NoError(t, err)
		}
		claimed, err := q.Claim(t.Context(), len(ids), time.Hour)
		require.NoError(t, err)
		receipts := map[string]string{}
		for _, e := range claimed {
			receipts[e.ID] = store.ScoreText(e.Score)
		}
		receipts["stale"] = store.ScoreText(claimed[0].Score + 1)
		_, err = q.Cancel(t.Context(), "gone")
		require.NoError(t, err)
		items, want := make([]store.Item, len(ids)), make([]store.Answer, len(ids))
		for i, id := range ids {
			items[i], want[i] = store.Item{ID: id, Receipt: receipts[id], Disposition: store.Disposition{Action: store.Finish}}, store.Accepted
			switch id {
			case "stale":
				want[i] = store.Stale
			case "gone":
				want[i] = store.Gone
			case "with":
				items[i].Disposition.Result, want[i] = "result", store.Resultless
			case "extended": // not plain
				require.NoError(t, q.Extend(t.Context(), claimed[i], 2*time.Hour))
			}
		}
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
		reply, err := systest.EngineOf(q).Executor.Run(t.Context(), systest.EngineOf(q).Store.Exchange(items, store.Claim{}))
		require.NoError(t, err)
		x, err := store.DecodeExchange(reply.Value, len(items))
		require.NoError(t, err)
		require.Equal(t, want, x.Answers)
	}
}
