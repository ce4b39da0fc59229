package shrink

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMap_CopiesWhatIsLeftOfAPeak: rarely, so that all the copies cost less than the
// deletions between them.
func TestMap_CopiesWhatIsLeftOfAPeak(t *testing.T) {
	t.Parallel()
	const n = 100_000
	m, peak, copied := map[int]int{}, 0, 0
	for i := range n {
		m[i] = i
	}
	for i := range n - 10 {
		before, was := len(m)-1, peak
		delete(m, i)
		if m = Map(m, &peak); peak < was {
			copied += len(m)
		}
		require.Len(t, m, before)
	}
	require.Positive(t, copied)
	require.Less(t, copied, n/fraction*2)
	for i := n - 10; i < n; i++ {
		require.Equal(t, i, m[i])
	}
}

func TestMap_LeavesSmallMapsAlone(t *testing.T) {
	t.Parallel()
	m, peak := map[int]int{}, 0
	for i := range smallest - 1 {
		m[i] = i
	}
	m = Map(m, &peak)
	clear(m)
	m = Map(m, &peak)
	require.Equal(t, smallest-1, peak)
	require.Empty(t, m)
}

func TestSlice_CopiesWhatIsLeftOfAPeak(t *testing.T) {
	t.Parallel()
	const n = 100_000
	s, copied := make([]int, n), 0
	for i := range s {
		s[i] = i
	}
	for len(s) > 0 {
		before := cap(s)
		s = Slice(s[:len(s)-1])
		if cap(s) != before {
			copied += len(s)
		}
		require.True(t, len(s) == 0 || s[len(s)-1] == len(s)-1)
	}
	require.Less(t, cap(s), smallest)
	require.Positive(t, copied)
	require.Less(t, copied, n/fraction*2)
}
