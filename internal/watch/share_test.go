package watch

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A client that was told of a task which had been due for a while asks twice as often if it gets
// it, and ever so little less often after each claim in vain.
func TestShare_FollowsWhatTheOthersDo(t *testing.T) {
	t.Parallel()
	clients := func(s *share) int { return s.of(announcement{clients: 1 << 30}).clients }
	var s share
	require.Equal(t, 1<<30, clients(&s))
	s.claimed(true)
	require.Zero(t, clients(&s), "the one that got a task asks for the next")
	s.claimed(false)
	require.Equal(t, 1<<30, clients(&s), "it was not late")
	for range 3 {
		s.late = true
		s.claimed(true)
		s.claimed(true) // the same task was late once
	}
	s.claimed(false)
	require.InDelta(t, float64(1<<27), float64(clients(&s)), 1<<27/50)
	s.late = true
	s.claimed(false)
	require.False(t, s.late)
	for range 1000 {
		s.claimed(false)
	}
	require.Equal(t, 1<<30, clients(&s))
	for range 100 {
		s.late = true
		s.claimed(true)
	}
	s.claimed(false)
	require.Greater(t, clients(&s), 1<<9, "and there is a bound")
}
