package watch

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseAnnouncement(t *testing.T) {
	for message, want := range map[string]announcement{
		"30 1 0":              {30, 1, 0},
		"0 250 1500":          {0, 250, 1500 * time.Microsecond},
		"1 1 999999999999999": {1, 1, maxOff},
		"":                    {},
		"x":                   {},
		"1 2":                 {},
		"1 2 -3":              {},
	} {
		require.Equal(t, want, parseAnnouncement(message), message)
	}
}

// TestAnnouncement_AboutFourAsk: with as many clients as there may be, about four ask at
// once, about half a client more in each doubling of the time, and all if they are few or
// much is due.
func TestAnnouncement_AboutFourAsk(t *testing.T) {
	for _, a := range []announcement{
		{}, {clients: 1, due: 1}, {clients: 2, due: 1}, {clients: 3, due: 1}, {clients: 30, due: 1}, {clients: 300, due: 1},
		{clients: 300, due: 10}, {clients: 300, due: 100}, {clients: 30, due: 1000}, {clients: 100_000, due: 1},
	} {
		t.Run(fmt.Sprint(a), func(t *testing.T) {
			const draws = 20_000 // evenly spread over 0 to 1: what many clients draw
			n, at := max(a.clients, 1), map[time.Duration]float64{}
			var last time.Duration
			for i := range draws {
				after, asks := a.ask((float64(i)+0.5)/draws, time.Second)
				if after < last || after > time.Second { // require takes seconds for so many
					require.FailNow(t, "out of order or range", "%v behind %v", after, last)
				}
				last = after
				for _, by := range []time.Duration{0, 2 * time.Millisecond, 64 * time.Millisecond, time.Second} {
					if asks && after <= by {
						at[by] += float64(n) / draws
					}
				}
			}
			most, due := float64(n), float64(max(a.due, 1))
			require.InDelta(t, min(4*due, most), at[0], 0.1*due+most*1e-4)
			require.InDelta(t, min(4.5*due, most), at[2*time.Millisecond], 0.1*due+most*1e-4)
			require.InDelta(t, min(7*due, most), at[64*time.Millisecond], 0.1*due+most*1e-4)
			require.LessOrEqual(t, at[time.Second], min(10*due, most)+0.1*due+most*1e-4)
			asking := math.Min(most, 4*due)
			require.GreaterOrEqual(t, float64(a.callers())*asking, due, "for each task one caller is told")
			require.LessOrEqual(t, a.callers(), int(due))
		})
	}
}
