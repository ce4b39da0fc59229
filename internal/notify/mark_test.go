package notify

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestNotifier_AMarkSaysWhetherAnythingWasMissed: a message, and a subscription that was made
// anew.
func TestNotifier_AMarkSaysWhetherAnythingWasMissed(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		require.False(t, s.Mark("a").Confirmed)
		l := s.Join("a", nil)
		require.False(t, s.Mark("a").Confirmed)
		require.True(t, notified(l))
		first := s.Mark("a")
		require.True(t, first.Follows(first))
		require.Zero(t, first.Since(first))
		time.Sleep(time.Second)
		s.m.Publish("a", "message")
		require.True(t, notified(l))
		second := s.Mark("a")
		require.True(t, second.Follows(first))
		require.Equal(t, 1, second.Since(first))
		require.Equal(t, "message", second.Message)
		require.Equal(t, time.Now(), second.At)

		s.set(func() { s.hangUps = 1 })
		s.RequestPing("a")
		time.Sleep(time.Second)
		require.True(t, notified(l))
		require.False(t, s.Mark("a").Follows(second), "another connection")
		third := s.Mark("a")
		s.Leave("a", l)
		time.Sleep(6 * time.Second)
		require.False(t, s.Mark("a").Follows(third), "it has ended")
		l = s.Join("a", nil)
		require.True(t, notified(l))
		require.False(t, s.Mark("a").Follows(third), "another subscription")
	})
}
