package sluice

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

// TestPresences_LeaveAQueueAloneThatMayHaveOtherShards: until the number is known, nothing is written.
func TestPresences_LeaveAQueueAloneThatMayHaveOtherShards(t *testing.T) {
	rdb, name := redistest.Redis(t).Client(t), redistest.Name(t)
	q, err := NewQueue(rdb, name, WithShards(4))
	require.NoError(t, err)
	ps := newPresences(&Worker{Queue: q}, "ID")
	ps[0].saying.Counts = 45
	ps.say(t.Context(), time.Second, false)
	require.Empty(t, rdb.Keys(t.Context(), "*"+name+"*").Val())
	require.NoError(t, q.ready(t.Context()))
	ps.say(t.Context(), time.Second, false)
	workers, err := q.Workers(t.Context())
	require.NoError(t, err)
	require.Len(t, workers, 1)
}
