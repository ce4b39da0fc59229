package inspect

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// TestReasonsOf_CountsWhatItLookedAt, the most frequent first: long ones by their beginning.
func TestReasonsOf_CountsWhatItLookedAt(t *testing.T) {
	t.Parallel()
	q, err := sluice.NewQueue(redistest.Redis(t).Client(t), redistest.Name(t))
	require.NoError(t, err)
	long := strings.Repeat("ü", longestReason)
	for i, reason := range []string{"timeout", "declined", "timeout", "timeout", long + "1", long + "2", "declined", "\xff"} {
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(i)})
		require.NoError(t, err)
		entries, err := q.Claim(t.Context(), 1, time.Minute)
		require.NoError(t, err)
		require.NoError(t, q.Bury(t.Context(), reason, entries...))
	}
	got, err := ReasonsOf(t.Context(), q, 100, time.Minute)
	require.NoError(t, err)
	require.Equal(t, 8, got.Looked)
	require.False(t, got.More)
	require.Equal(t, []ReasonCount{{"timeout", false, 3}, {"declined", false, 2}, {long, true, 2}}, got.Counts[:3])
	got, err = ReasonsOf(t.Context(), q, 5, time.Minute)
	require.NoError(t, err)
	require.True(t, got.More, "not all were looked at")
	require.Equal(t, 5, got.Looked)
	got, err = ReasonsOf(t.Context(), q, 8, 0)
	require.NoError(t, err)
	require.True(t, got.More, "there was no time")
	require.Equal(t, 1, got.Looked)
	require.NoError(t, q.Purge(t.Context()))
	got, err = ReasonsOf(t.Context(), q, 5, time.Minute)
	require.NoError(t, err)
	require.Equal(t, Reasons{}, got)
}
