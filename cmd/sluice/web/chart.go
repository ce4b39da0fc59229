package web

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

const (
	chartWidth, chartHeight = 120.0, 32.0
	// longestGap is how far apart two looks may be to be joined by a line: in between neither a viewer
	// nor Watch has asked. One look of Watch may fail.
	longestGap = 2*sampleEvery + 2*time.Second
	// mostDrawn is how many points a chart has at the most, which is one for each two pixels of most.
	mostDrawn = 90
	// rateOver is the time over which a rate is taken.
	rateOver = time.Minute
	// rateLeast is the least time over which there is a rate.
	rateLeast = 3 * time.Second
	// leastWindow is the least time that a chart spans.
	leastWindow = 20 * time.Second
)

// chart is a small drawing of one figure over the last minutes.
type chart struct {
	Label      string // for those who do not see it
	Line, Area string // paths of SVG
}

// newChart draws what of gives of each point.
func newChart(label string, points []point, now time.Time, of func(point) int64) chart {
	if len(points) == 0 {
		return chart{}
	}
	least, most := of(points[0]), of(points[0])
	for _, p := range points {
		least, most = min(least, of(p)), max(most, of(p))
	}
	last := of(points[len(points)-1])
	first := points[0].at
	c := chart{Label: fmt.Sprintf("%s, the last %s: %s to %s, now %s", label, span(now.Sub(first)), inspect.Count(least), inspect.Count(most), inspect.Count(last))}
	window := max(now.Sub(first), leastWindow)
	apart := max(longestGap, 2*window/mostDrawn)
	points = thinned(points, window/mostDrawn, of)
	place := func(p point) (x, y float64) {
		x = chartWidth * (1 - float64(now.Sub(p.at))/float64(window))
		y = chartHeight - 2 - (chartHeight-4)*float64(of(p))/float64(max(most, 1))
		return max(x, 0), y
	}
	var line, area strings.Builder
	for start := 0; start < len(points); {
		end := start + 1
		for end < len(points) && points[end].at.Sub(points[end-1].at) <= apart {
			end++
		}
		drawRun(&line, &area, points[start:end], place)
		start = end
	}
	c.Line, c.Area = line.String(), area.String()
	return c
}

// thinned returns points that are so far apart at the least: of those between, the one with the
// greatest figure, so that no peak is lost, and the last point of all, which is what is now.
func thinned(points []point, apart time.Duration, of func(point) int64) []point {
	var kept []point
	var begins time.Time
	for i, p := range points {
		switch n := len(kept); {
		case n == 0 || i == len(points)-1 || p.at.Sub(begins) >= apart:
			kept, begins = append(kept, p), p.at
		case of(p) > of(kept[n-1]):
			kept[n-1] = p
		}
	}
	return kept
}

// drawRun adds points without a gap between them.
func drawRun(line, area *strings.Builder, points []point, place func(point) (x, y float64)) {
	command := "M"
	var first, last float64
	var run strings.Builder
	for i, p := range points {
		x, y := place(p)
		if i == 0 {
			first = x
		}
		last = x
		run.WriteString(command + decimal(x) + " " + decimal(y))
		command = "L"
	}
	if len(points) == 1 {
		run.WriteString("h0.1") // a dot
	}
	line.WriteString(run.String())
	area.WriteString(run.String() + "L" + decimal(last) + " " + decimal(chartHeight) + "L" + decimal(first) + " " + decimal(chartHeight) + "Z")
}

func decimal(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) }

// change is how fast a figure changes.
type change struct {
	Known     bool
	PerSecond float64
}

// lately returns the points of the last minute that have no gap between them, and over how long
// they reach: 0 if that is too short for a rate.
func lately(points []point) (run []point, took time.Duration) {
	if len(points) < 2 {
		return nil, 0
	}
	last, start := points[len(points)-1], len(points)-1
	for start > 0 && last.at.Sub(points[start-1].at) <= rateOver && points[start].at.Sub(points[start-1].at) <= longestGap {
		start--
	}
	if took = last.at.Sub(points[start].at); took < rateLeast {
		return nil, 0
	}
	return points[start:], took
}

// newChange returns how fast a figure has changed over the last minute: what came less what went.
func newChange(points []point, of func(point) int64) change {
	run, took := lately(points)
	if took == 0 {
		return change{}
	}
	return change{Known: true, PerSecond: float64(of(run[len(run)-1])-of(run[0])) / took.Seconds()}
}

// newRate returns how fast a count has grown over the last minute. One that has fallen began anew
// at 0.
func newRate(points []point, of func(point) int64) change {
	run, took := lately(points)
	if took == 0 {
		return change{}
	}
	var came int64
	for i, p := range run[1:] {
		if before := of(run[i]); of(p) >= before {
			came += of(p) - before
		} else {
			came += of(p)
		}
	}
	return change{Known: true, PerSecond: float64(came) / took.Seconds()}
}

// Text writes the rate, or that it is not known yet.
func (c change) Text() string {
	if !c.Known {
		return "…"
	}
	return rate(c.PerSecond)
}

// Often writes the rate of what only comes, or that it is not known yet.
func (c change) Often() string {
	if !c.Known {
		return "…"
	}
	return often(c.PerSecond)
}

// IsSome reports whether any came.
func (c change) IsSome() bool { return c.PerSecond > 0 }

// drained returns in how long n tasks are gone at this rate, 0 if never.
func (c change) drained(n int64) time.Duration {
	if !c.Known || c.PerSecond > -0.05 || n == 0 {
		return 0
	}
	seconds := float64(n) / -c.PerSecond
	if seconds > 1e8 {
		return 0
	}
	return time.Duration(seconds * float64(time.Second))
}
