package main

import (
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// report returns a table of both sales.
func report(without, with figures) string {
	t := table.NewWriter()
	t.SetStyle(table.StyleRounded)
	t.Style().Format.Header = text.FormatDefault
	t.SetColumnConfigs([]table.ColumnConfig{
		{Number: 2, Align: text.AlignRight, AlignHeader: text.AlignRight},
		{Number: 3, Align: text.AlignRight, AlignHeader: text.AlignRight},
	})
	t.AppendHeader(table.Row{"", "without a lock", "with Locker"})
	t.AppendRows([]table.Row{
		{"units for sale", without.total, with.total},
		{"sold (paid)", without.paid, with.paid},
		{"oversold", without.oversold, with.oversold},
		{"customers who got two", without.twice, with.twice},
	})
	t.AppendSeparator()
	t.AppendRows([]table.Row{
		{"holds of the lock", "", with.sections},
		{"a second, until first sold out", "", with.rate},
		{"lock wait p50 / p99", "", joined(with.waited.p50, with.waited.p99)},
		{"overtaken in spite of it", "", with.overtaken},
	})
	t.AppendSeparator()
	t.AppendRows([]table.Row{
		{"orders cancelled, unit sold again", "", with.cancelled},
		{"cancelled too early", "", early(with.late)},
		{"cancelled late by p50 / p99 / max", "", joined(with.late.p50, with.late.p99, with.late.max)},
	})
	t.AppendSeparator()
	t.AppendRow(table.Row{"took, until all were paid", "", round(with.took)})
	return t.Render()
}

func early(late spread) string {
	if late.min < 0 {
		return "by " + round(-late.min)
	}
	return "never"
}

func joined(ds ...time.Duration) string {
	var s string
	for i, d := range ds {
		if i > 0 {
			s += " / "
		}
		s += round(d)
	}
	return s
}

// round formats a time with about three digits.
func round(d time.Duration) string {
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	default:
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	}
}
