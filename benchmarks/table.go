package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// measure is what a scenario compares.
type measure struct {
	unit string
	show func(float64) string
}

var (
	perSecond = measure{"sections/s", func(v float64) string { return fmt.Sprintf("%.0f/s", v) }}
	duration  = measure{"time", func(v float64) string { return short(time.Duration(v)) }}
)

// column is a figure of one scenario only.
type column struct {
	title string
	fold  func([]float64) float64 // of all rounds
	show  func(float64) string
}

// short rounds a time to three digits.
func short(d time.Duration) string {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}

func whole(v float64) string   { return fmt.Sprintf("%.0f", v) }
func percent(v float64) string { return fmt.Sprintf("%.0f%%", 100*v) }

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// print writes the scenario's table.
func (s scenario) print(out io.Writer, results [][]result) {
	t := table.NewWriter()
	t.SetOutputMirror(out)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault

	withWaits := slices.ContainsFunc(results, func(rs []result) bool { return waits(rs) != nil })
	header := table.Row{"contender", "median", "min - max", "to Sluice"}
	if withWaits {
		header = append(header, "p50 wait", "p99 wait", "max wait")
	}
	for _, c := range s.columns {
		header = append(header, c.title)
	}
	t.AppendHeader(append(header, "failures"))
	var aligned []table.ColumnConfig
	for i := 2; i <= len(header); i++ {
		aligned = append(aligned, table.ColumnConfig{Number: i, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(append(aligned, table.ColumnConfig{Number: len(header) + 1, WidthMax: 60}))
	for i, rs := range results {
		t.AppendRow(s.row(s.entries[i].name, rs, s.reference(results), withWaits))
	}
	_, _ = fmt.Fprintf(out, "\n%s: %s\n", s.name, s.about)
	if s.retry > 0 {
		_, _ = fmt.Fprintf(out, "retry delay of redislock and redsync: %v\n", s.retry)
	}
	t.Render()
}

// reference is Sluice's median.
func (s scenario) reference(results [][]result) float64 {
	for i, e := range s.entries {
		if strings.HasPrefix(e.name, sluiceName) {
			return median(valuesOf(results[i]))
		}
	}
	return 0
}

func (s scenario) row(name string, rs []result, reference float64, withWaits bool) table.Row {
	values := valuesOf(rs)
	row := table.Row{name, "-", "-", "-"}
	if len(values) > 0 {
		m := median(values)
		row = table.Row{name, s.measure.show(m), s.measure.show(slices.Min(values)) + " - " + s.measure.show(slices.Max(values)), "-"}
		if reference > 0 {
			row[3] = fmt.Sprintf("%.3g x", m/reference)
		}
	}
	if withWaits {
		row = append(row, waitCells(waits(rs))...)
	}
	for _, c := range s.columns {
		row = append(row, c.cell(rs))
	}
	return append(row, remarks(rs))
}

// valuesOf are the measurements of the turns that came to one.
func valuesOf(rs []result) (values []float64) {
	for _, r := range rs {
		if r.value > 0 {
			values = append(values, r.value)
		}
	}
	return values
}

// waits are those of all rounds together, nil if there are none.
func waits(rs []result) *hdrhistogram.Histogram {
	var sum *hdrhistogram.Histogram
	for _, r := range rs {
		if r.waits == nil {
			continue
		}
		if sum == nil {
			sum = newWaits()
		}
		sum.Merge(r.waits)
	}
	return sum
}

func waitCells(h *hdrhistogram.Histogram) table.Row {
	if h == nil {
		return table.Row{"-", "-", "-"}
	}
	return table.Row{
		short(time.Duration(h.ValueAtQuantile(50))),
		short(time.Duration(h.ValueAtQuantile(99))),
		short(time.Duration(h.Max())),
	}
}

func (c column) cell(rs []result) string {
	var values []float64
	for _, r := range rs {
		if v, ok := r.extra[c.title]; ok {
			values = append(values, v)
		}
	}
	if len(values) == 0 {
		return "-"
	}
	return c.show(c.fold(values))
}

// remarks are the notes and the failures of all rounds.
func remarks(rs []result) string {
	var all failures
	var notes []string
	for _, r := range rs {
		all.merge(r.failures)
		if r.notes != "" && !slices.Contains(notes, r.notes) {
			notes = append(notes, r.notes)
		}
	}
	said := "0"
	if all.Count > 0 {
		said = fmt.Sprintf("%d: %s", all.Count, all.First)
	}
	if len(notes) > 0 {
		said += "; " + strings.Join(notes, "; ")
	}
	return said
}

// printSettings says what the contenders were set to.
func printSettings(out io.Writer, scenarios []scenario) {
	_, _ = fmt.Fprintln(out, "\nSettings:")
	said := map[string]bool{}
	for _, s := range scenarios {
		for _, e := range s.entries {
			if !said[e.name] {
				said[e.name] = true
				_, _ = fmt.Fprintf(out, "  %s: %s\n", e.name, e.settings)
			}
		}
	}
}
