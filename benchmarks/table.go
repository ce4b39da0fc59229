package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// measure is the quantity that a scenario compares.
type measure struct {
	unit   string
	better string
	show   func(float64) string
}

const (
	less = "less"
	more = "more"
)

var (
	perSecond = measure{"sections/s", more, func(v float64) string { return fmt.Sprintf("%.0f/s", v) }}
	duration  = measure{"time", less, func(v float64) string { return short(time.Duration(v)) }}
)

// column is a figure that only some scenarios have.
type column struct {
	title string
	fold  func([]float64) float64 // one figure from those of all rounds
	show  func(float64) string
}

// short rounds a time to three digits.
func short(d time.Duration) string {
	unit := time.Duration(1)
	for d.Abs()/unit >= 1000 {
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
func (o outcome) print(out io.Writer) {
	t := table.NewWriter()
	t.SetOutputMirror(out)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault

	withWaits := slices.ContainsFunc(o.Contenders, func(st standing) bool { return st.Wait != nil })
	header := table.Row{"contender", "median", "min - max", "to Sluice"}
	if withWaits {
		header = append(header, "p50 wait", "p99 wait", "max wait")
	}
	for _, c := range o.scenario.columns {
		header = append(header, c.title)
	}
	t.AppendHeader(append(header, "failures"))
	var aligned []table.ColumnConfig
	for i := 2; i <= len(header); i++ {
		aligned = append(aligned, table.ColumnConfig{Number: i, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(append(aligned, table.ColumnConfig{Number: len(header) + 1, WidthMax: 60}))
	for _, st := range o.Contenders {
		t.AppendRow(o.scenario.row(st, withWaits))
	}
	_, _ = fmt.Fprintf(out, "\n%s: %s\n", o.Name, o.About)
	if o.Retry > 0 {
		_, _ = fmt.Fprintf(out, "retry delay of redislock and redsync: %v\n", o.Retry)
	}
	t.Render()
}

func (s scenario) row(st standing, withWaits bool) table.Row {
	row := table.Row{st.Name, "-", "-", "-"}
	if len(st.Values) > 0 {
		row = table.Row{st.Name, s.measure.show(st.Median), s.measure.show(st.Min) + " - " + s.measure.show(st.Max), "-"}
		if st.Ratio > 0 {
			row[3] = fmt.Sprintf("%.3g x", st.Ratio)
		}
	}
	if withWaits {
		row = append(row, st.Wait.cells()...)
	}
	for _, c := range s.columns {
		row = append(row, c.cell(st))
	}
	return append(row, st.remarks())
}

func (w *wait) cells() table.Row {
	if w == nil {
		return table.Row{"-", "-", "-"}
	}
	return table.Row{short(w.P50), short(w.P99), short(w.Max)}
}

func (c column) cell(st standing) string {
	v, ok := st.Extra[c.title]
	if !ok {
		return "-"
	}
	return c.show(v)
}

// remarks returns the failures and the notes.
func (st standing) remarks() string {
	remarks := "0"
	if st.Failures.Count > 0 {
		remarks = fmt.Sprintf("%d: %s", st.Failures.Count, st.Failures.First)
	}
	return strings.Join(append([]string{remarks}, st.Notes...), "; ")
}

// printSettings prints the settings of all contenders.
func printSettings(out io.Writer, scenarios []scenario) {
	_, _ = fmt.Fprintln(out, "\nSettings:")
	printed := map[string]bool{}
	for _, s := range scenarios {
		for _, e := range s.entries {
			line := fmt.Sprintf("  %s: %s\n", e.name, e.settings)
			if !printed[line] {
				printed[line] = true
				_, _ = fmt.Fprint(out, line)
			}
		}
	}
}
