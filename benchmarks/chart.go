package main

import (
	"bytes"
	"cmp"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	textstyle "gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// chart has horizontal bars, one per contender, the first on top.
type chart struct {
	title string
	axis  string
	show  func(float64) string
	bars  []bar
}

// bar shows a value, with its range from least to most.
type bar struct {
	name               string
	value, least, most float64
}

var (
	barColor    = color.RGBA{R: 0xb4, G: 0xbc, B: 0xc4, A: 0xff}
	sluiceColor = color.RGBA{R: 0x2b, G: 0x7b, B: 0xba, A: 0xff}
)

func init() { plot.DefaultFont.Variant = "Sans" } // of all plots of the process

// plot draws every scenario's medians, and its waits if there are any.
func (r report) plot(dir string) error {
	for _, o := range r.Scenarios {
		for suffix, c := range map[string]chart{"": o.medians(), "-wait": o.waits()} {
			if len(c.bars) == 0 {
				continue
			}
			if err := c.save(filepath.Join(dir, o.Name+suffix+".svg")); err != nil {
				return fmt.Errorf("-plot: %w", err)
			}
		}
	}
	return nil
}

func (o outcome) medians() chart {
	c := chart{
		title: cmp.Or(o.scenario.headline, o.Name+": "+o.About),
		axis:  o.Unit + ", median and least to most; " + o.Better + " is better",
		show:  o.scenario.measure.show,
	}
	for _, st := range o.Contenders {
		if len(st.Values) > 0 {
			c.bars = append(c.bars, bar{st.Name, st.Median, st.Min, st.Max})
		}
	}
	return c
}

func (o outcome) waits() chart {
	c := chart{
		title: "The longest wait, but for one in a hundred: " + cmp.Or(o.scenario.headline, o.Name+": "+o.About),
		axis:  "p99 of the waits; less is better",
		show:  duration.show,
	}
	for _, st := range o.Contenders {
		if st.Wait != nil {
			p99 := float64(max(st.Wait.P99, time.Microsecond)) // the least that the histogram distinguishes from 0
			c.bars = append(c.bars, bar{st.Name, p99, p99, p99})
		}
	}
	return c
}

// scale places values on an axis: linear or, with a floor, logarithmic above it.
type scale struct{ floor float64 }

func (s scale) at(v float64) float64 {
	if s.floor == 0 {
		return v
	}
	return math.Log10(v / s.floor)
}

// maxLinear is the largest ratio of the longest bar to the shortest on a linear scale.
const maxLinear = 20

// scale returns a linear scale or, if the shortest bar could not be seen, a logarithmic one
// from the power of ten below all values.
func (c chart) scale() scale {
	least, shortest, longest := math.Inf(1), math.Inf(1), 0.0
	for _, b := range c.bars {
		least, shortest, longest = min(least, b.least), min(shortest, b.value), max(longest, b.value)
	}
	if longest <= maxLinear*shortest {
		return scale{}
	}
	return scale{math.Pow10(int(math.Ceil(math.Log10(least))) - 1)}
}

// ticks returns the powers of ten, or gonum's ticks, formatted as in the tables.
func (s scale) ticks(show func(float64) string) plot.TickerFunc {
	return func(least, most float64) (ticks []plot.Tick) {
		if s.floor > 0 {
			for i := 0.0; i <= most; i++ {
				ticks = append(ticks, plot.Tick{Value: i, Label: show(s.floor * math.Pow(10, i))})
			}
			return ticks
		}
		ticks = plot.DefaultTicks{}.Ticks(least, most)
		for i, tick := range ticks {
			if !tick.IsMinor() {
				ticks[i].Label = show(tick.Value)
			}
		}
		return ticks
	}
}

const (
	chartWidth  = 8 * vg.Inch
	rowHeight   = 0.35 * vg.Inch
	chartMargin = 0.1 * vg.Inch
)

func (c chart) save(file string) error {
	p := c.draw()
	rows := len(c.bars) + strings.Count(p.Title.Text, "\n")
	canvas := vgsvg.New(chartWidth, vg.Length(rows)*rowHeight+1.2*vg.Inch)
	area := draw.New(canvas)
	area.SetColor(color.White)
	area.Fill(area.Path())
	p.Draw(draw.Crop(area, chartMargin, -chartMargin, chartMargin, -chartMargin))
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return err
	}
	// Arial has the same widths, and is on more machines.
	return os.WriteFile(file, bytes.ReplaceAll(svg.Bytes(), []byte("Liberation Sans"), []byte("Liberation Sans,Arial,sans-serif")), 0o666)
}

func (c chart) draw() *plot.Plot {
	p, s := plot.New(), c.scale()
	p.Title.Text = text.WrapSoft(c.title, 90)
	p.Title.Padding = vg.Points(8)
	p.X.Label.Text = c.axis
	if s.floor > 0 {
		p.X.Label.Text += "; each tick is ten times the one before"
	}
	p.X.Tick.Marker = s.ticks(c.show)
	names := make([]string, len(c.bars))
	for i, b := range c.bars {
		row := len(c.bars) - 1 - i
		names[row] = b.name
		b.addTo(p, s, float64(row), c.show(b.value))
	}
	p.NominalY(names...)
	p.X.Min = 0
	return p
}

// addTo draws the bar, a line from least to most, and the value beside it.
func (b bar) addTo(p *plot.Plot, s scale, row float64, label string) {
	value, least, most := s.at(b.value), s.at(b.least), s.at(b.most)
	fill := barColor
	if strings.HasPrefix(b.name, sluiceName) {
		fill = sluiceColor
	}
	p.Add(&plotter.BarChart{
		Values: plotter.Values{value}, XMin: row, Width: vg.Points(14), Color: fill, Horizontal: true,
	})
	if least < most {
		p.Add(&plotter.XErrorBars{
			XYs:       plotter.XYs{{X: value, Y: row}},
			XErrors:   plotter.XErrors{{Low: value - least, High: most - value}},
			LineStyle: plotter.DefaultLineStyle, CapWidth: vg.Points(5),
		})
	}
	style := p.X.Tick.Label
	style.XAlign, style.YAlign = draw.XLeft, draw.YCenter
	p.Add(&plotter.Labels{
		XYs:    plotter.XYs{{X: most, Y: row}},
		Labels: []string{label}, TextStyle: []textstyle.Style{style}, Offset: vg.Point{X: vg.Points(4)},
	})
}
