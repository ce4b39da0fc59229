package shophttp

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// The measures of a picture, in units of its view box, and how fine it is.
const (
	chartLeft   = 64.0
	chartWidth  = 780.0
	panelHeight = 96.0
	panelGap    = 42.0
	chartTop    = 90.0
	mostPoints  = 260 // of a line
)

// panel is one diagram. Those of a picture stand below each other, over one axis of time.
type panel struct {
	Title      string
	Y, TitleY  float64
	Lines      []line
	Top, Least string // labels
}

type line struct {
	Name, Class, Path string
	X                 float64 // of the name
}

// mark is a label at a time.
type mark struct {
	Label string
	X     float64
	Row   float64 // y of the label
}

// curve is a line before it is drawn: NaN is a gap.
type curve struct {
	name, class string
	at          func(Sample) float64
}

// viewOf draws a sale.
func viewOf(r Result) view {
	v := view{Result: r, Width: chartLeft + chartWidth + 20}
	if n := len(r.Samples); n > 0 {
		v.Now = r.Samples[n-1]
	}
	samples := thin(r.Samples)
	span := max(v.Now.At, time.Second)
	x := func(at time.Duration) float64 { return chartLeft + chartWidth*float64(at)/float64(span) }
	plain := func(n float64) string { return count(n) }
	millis := func(n float64) string { return round(time.Duration(n * float64(time.Millisecond))) }
	add := func(title string, label func(float64) string, curves ...curve) {
		v.Panels = append(v.Panels, draw(title, chartTop+float64(len(v.Panels))*(panelHeight+panelGap), samples, x, label, curves))
	}
	add("requests a second", plain, curve{"", "rate", func(s Sample) float64 { return s.Rate }})
	add("units", plain,
		curve{"in stock", "stock", func(s Sample) float64 { return float64(s.Stock) }},
		curve{"unpaid", "unpaid", func(s Sample) float64 { return float64(s.Unpaid) }},
		curve{"paid", "paid", func(s Sample) float64 { return float64(s.Paid) }},
		curve{"cancelled and sold again", "cancelled", func(s Sample) float64 { return float64(s.Cancelled) }})
	add("requests under way", plain, curve{"", "under-way", func(s Sample) float64 { return float64(s.UnderWay) }})
	add("p99 of an answer; a gap is a pause", millis, curve{"", "p99", func(s Sample) float64 {
		if s.P99 == 0 {
			return math.NaN()
		}
		return float64(s.P99) / float64(time.Millisecond)
	}})
	v.Height = chartTop + float64(len(v.Panels))*(panelHeight+panelGap) + 4
	for i, e := range r.Events {
		v.Marks = append(v.Marks, mark{e.What, x(e.At), 32 + 13*float64(i%4)})
	}
	for _, at := range ticks(span) {
		v.Axis = append(v.Axis, mark{Label: fmt.Sprint(at.Seconds(), " s"), X: x(at)})
	}
	return v
}

// thin puts neighbours together until a line is not too fine: their rate is the mean, their p99 the
// worst.
func thin(samples []Sample) (thinned []Sample) {
	step := len(samples)/mostPoints + 1
	var last Sample
	for i := step - 1; i < len(samples); i += step {
		now := samples[i]
		for _, s := range samples[i+1-step : i] {
			now.P99 = max(now.P99, s.P99)
		}
		now.Rate = float64(now.Requests-last.Requests) / (now.At - last.At).Seconds()
		thinned, last = append(thinned, now), now
	}
	return thinned
}

func draw(title string, y float64, samples []Sample, x func(time.Duration) float64, label func(float64) string, curves []curve) panel {
	top := 1.0
	for _, s := range samples {
		for _, c := range curves {
			if v := c.at(s); v > top { // not NaN
				top = v
			}
		}
	}
	p := panel{Title: title, Y: y, TitleY: y - 8, Top: label(top), Least: "0"}
	legend := chartLeft + 60
	for _, c := range curves {
		l := line{Name: c.name, Class: c.class, X: legend}
		legend += 26 + 6.4*float64(len(c.name))
		var path strings.Builder
		pen := "M"
		for _, s := range samples {
			v := c.at(s)
			if math.IsNaN(v) {
				pen = "M"
				continue
			}
			fmt.Fprintf(&path, "%s%.1f %.1f", pen, x(s.At), y+panelHeight*(1-v/top))
			pen = "L"
		}
		l.Path = path.String()
		p.Lines = append(p.Lines, l)
	}
	return p
}

// ticks returns at most ten round times within a span.
func ticks(span time.Duration) (at []time.Duration) {
	step := time.Second
	for _, factor := range []time.Duration{2, 5, 10, 20, 30, 60, 120, 300, 600} {
		if span/step <= 10 {
			break
		}
		step = factor * time.Second
	}
	for t := time.Duration(0); t <= span; t += step {
		at = append(at, t)
	}
	return at
}
