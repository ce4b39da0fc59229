package notify

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseAnnouncement(t *testing.T) {
	for message, want := range map[string]Announcement{
		"30 1 0":              {30, 1, 0},
		"0 250 1500":          {0, 250, 1500 * time.Microsecond},
		"1 1 999999999999999": {1, 1, maxOff},
		"":                    {},
		"x":                   {},
		"1 2":                 {},
		"1 2 -3":              {},
	} {
		require.Equal(t, want, ParseAnnouncement(message), message)
	}
}

// TestAnnouncement_AboutFourAsk: with as many clients as there may be, about four ask at
// once, about half a client more in each doubling of the time, and all if they are few or
// much is due.
func TestAnnouncement_AboutFourAsk(t *testing.T) {
	for _, a := range []Announcement{
		{}, {Clients: 1, Due: 1}, {Clients: 2, Due: 1}, {Clients: 3, Due: 1}, {Clients: 30, Due: 1}, {Clients: 300, Due: 1},
		{Clients: 300, Due: 10}, {Clients: 300, Due: 100}, {Clients: 30, Due: 1000}, {Clients: 100_000, Due: 1},
	} {
		t.Run(fmt.Sprint(a), func(t *testing.T) {
			const draws = 20_000 // evenly spread over 0 to 1: what many clients draw
			n, at := max(a.Clients, 1), map[time.Duration]float64{}
			var last time.Duration
			for i := range draws {
				after, asks := a.Ask((float64(i)+0.5)/draws, time.Second)
				require.GreaterOrEqual(t, after, last)
				require.LessOrEqual(t, after, time.Second)
				last = after
				for _, by := range []time.Duration{0, 2 * time.Millisecond, 64 * time.Millisecond, time.Second} {
					if asks && after <= by {
						at[by] += float64(n) / draws
					}
				}
			}
			most, due := float64(n), float64(max(a.Due, 1))
			require.InDelta(t, min(4*due, most), at[0], 0.1*due+most*1e-4)
			require.InDelta(t, min(4.5*due, most), at[2*time.Millisecond], 0.1*due+most*1e-4)
			require.InDelta(t, min(7*due, most), at[64*time.Millisecond], 0.1*due+most*1e-4)
			require.LessOrEqual(t, at[time.Second], min(10*due, most)+0.1*due+most*1e-4)
			asking := math.Min(most, 4*due)
			require.GreaterOrEqual(t, float64(a.Callers())*asking, due, "for each task one caller is told")
			require.LessOrEqual(t, a.Callers(), int(due))
		})
	}
}

// TestNotifier_AMarkSaysWhetherAnythingWasMissed: a message, and a subscription that was made
// anew.
func TestNotifier_AMarkSaysWhetherAnythingWasMissed(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		require.False(t, s.Mark("a").Confirmed)
		l := s.Join("a")
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
		l = s.Join("a")
		require.True(t, notified(l))
		require.False(t, s.Mark("a").Follows(third), "another subscription")
	})
}

// TestNotifier_ABriefSubscriptionEndsSoon, beside one that lingers.
func TestNotifier_ABriefSubscriptionEndsSoon(t *testing.T) {
	inBubble(t, func(t *testing.T, s *setup) {
		a, b := s.Join("a"), s.JoinBriefly("b")
		require.True(t, notified(a))
		require.True(t, notified(b))
		for range 3 {
			s.Leave("a", a)
			s.Leave("b", b)
			time.Sleep(briefLinger - time.Millisecond)
			a, b = s.Join("a"), s.JoinBriefly("b")
			require.True(t, notified(b))
		}
		require.Len(t, s.at("SUBSCRIBE b"), 1)
		s.Leave("a", a)
		s.Leave("b", b)
		time.Sleep(briefLinger)
		require.False(t, notified(b))
		require.Equal(t, []string{"a"}, s.m.PubSubChannels("*"))
		time.Sleep(linger)
		require.True(t, s.isOver(t))
	})
}
