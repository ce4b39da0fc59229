package web

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

func TestFormat(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "<1s", 999 * time.Millisecond: "<1s", time.Second: "1s", 59 * time.Second: "59s", time.Minute: "1m 00s", 3*time.Minute + 7*time.Second: "3m 07s",
		time.Hour: "1h 00m", 25 * time.Hour: "1d 01h", -5 * time.Second: "5s", 1 << 62: "53,375d",
	} {
		require.Equal(t, want, span(d), d)
	}
	for f, want := range map[float64]string{0: "steady", 0.04: "steady", -0.04: "steady", 0.06: "+0.1/s", -4.25: "−4.2/s", 12.6: "+13/s", -12345.6: "−12,346/s"} {
		require.Equal(t, want, rate(f))
	}
	for f, want := range map[float64]string{0: "none", -1: "none", 0.05: "3.0/min", 0.5: "30/min", 4.25: "4.2/s", 1234.6: "1,235/s"} {
		require.Equal(t, want, often(f))
	}
	require.Equal(t, "1 byte", size(1))
	require.Equal(t, "999 bytes", size(999))
	require.Equal(t, "1.5 kB", size(1500))
	require.Equal(t, "2.0 MB", size(2_000_000))
}

// TestChart_DrawsNoLineOverAGap: where no viewer has asked, nothing is known.
func TestChart_DrawsNoLineOverAGap(t *testing.T) {
	now := time.Now()
	at := func(ago time.Duration, n int64) point { return point{at: now.Add(-ago), due: n} }
	due := func(p point) int64 { return p.due }
	require.Empty(t, newChart("Due", nil, now, due).Line)
	points := []point{at(100*time.Second, 0), at(98*time.Second, 10), at(40*time.Second, 20), at(38*time.Second, 10), at(0, 5)}
	c := newChart("Due", points, now, due)
	require.Equal(t, "M0.0 30.0L2.4 16.0M72.0 2.0L74.4 16.0M120.0 23.0h0.1", c.Line)
	require.Equal(t, "Due, the last 1m 40s: 0 to 20, now 5", c.Label)
}

// TestChange_IsOfTheLastMinute, and of a time that was watched.
func TestChange_IsOfTheLastMinute(t *testing.T) {
	now := time.Now()
	var points []point
	for i := range 100 {
		points = append(points, point{at: now.Add(time.Duration(i) * time.Second), due: int64(max(0, i-30) * 4)})
	}
	due := func(p point) int64 { return p.due }
	require.InDelta(t, 4, newChange(points, due).PerSecond, 1e-9)
	require.False(t, newChange(points[:2], due).Known, "too short a time")
	require.Equal(t, "…", newChange(nil, due).Text())
	points[80].at = points[79].at.Add(longestGap + time.Second)
	for i := 81; i < 100; i++ {
		points[i].at = points[80].at.Add(time.Duration(i-80) * time.Second)
	}
	points[80].due = 0
	require.InDelta(t, float64(points[99].due)/19, newChange(points, due).PerSecond, 1e-9, "not over the gap")
	require.Equal(t, 25*time.Second, change{Known: true, PerSecond: -4}.drained(100))
	require.Zero(t, change{Known: true, PerSecond: 4}.drained(100))
	require.Zero(t, change{}.drained(100))
}

// TestRate_ACountThatFellBeganAnew: what it has since is added to what came before.
func TestRate_ACountThatFellBeganAnew(t *testing.T) {
	now := time.Now()
	var points []point
	for i, n := range []int64{100, 110, 130, 5, 5, 15} {
		points = append(points, point{at: now.Add(time.Duration(i) * 2 * time.Second), finished: n})
	}
	require.InDelta(t, (10+20+5+10)/10.0, newRate(points, point.succeeded).PerSecond, 1e-9)
	require.Equal(t, "…", newRate(points[:1], point.succeeded).Often())
}

// TestNote_TellsNothingThatIsNotSo: a paused queue does not drain, and what is leased is not
// scheduled.
func TestNote_TellsNothingThatIsNotSo(t *testing.T) {
	now := time.Now()
	due := tab{State: sluice.StateDue, Change: change{Known: true, PerSecond: -10}}
	require.Equal(t, "oldest for 7s, gone in 10s", note(due, sluice.Stats{Due: 100, Lateness: 7 * time.Second}, now))
	require.Equal(t, "oldest for 7s", note(due, sluice.Stats{Due: 100, Lateness: 7 * time.Second, Paused: true}, now))
	require.Equal(t, "nothing waits", note(due, sluice.Stats{}, now))
	scheduled := tab{State: sluice.StateScheduled}
	require.Equal(t, "next in 5s", note(scheduled, sluice.Stats{Scheduled: 1, NextDue: now.Add(5 * time.Second)}, now))
	require.Equal(t, "none", note(scheduled, sluice.Stats{NextDue: now.Add(5 * time.Second)}, now))
}
