package web

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// TestPage_PutsOffNothingThatAWorkerHas taken since the list was shown: its handler's work would be done twice.
func TestPage_PutsOffNothingThatAWorkerHas(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	s := newSite(t, rdb, Options{Write: true})
	for _, do := range []string{"delay", "run"} {
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: "a"})
		require.NoError(t, err)
		es, err := q.Claim(t.Context(), 1, time.Minute)
		require.NoError(t, err)
		require.Len(t, es, 1)
		s.post("/queues/orders/tasks", "do", do, "id", "a", "state", "due", "for", "10m").requireSafe(t)
		require.NoError(t, q.Dequeue(t.Context(), es...))
		_, err = q.Get(t.Context(), "a")
		require.ErrorIs(t, err, sluice.ErrNotFound, "%s: it comes again", do)
	}
}
