package main

import (
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// report returns a table of the sales.
func report(naive, stock, locked figures) string {
	t := table.NewWriter()
	t.SetStyle(table.StyleRounded)
	t.Style().Format.Header = text.FormatDefault
	t.SetColumnConfigs([]table.ColumnConfig{
		{Number: 2, Align: text.AlignRight, AlignHeader: text.AlignRight},
		{Number: 3, Align: text.AlignRight, AlignHeader: text.AlignRight},
		{Number: 4, Align: text.AlignRight, AlignHeader: text.AlignRight},
	})
	t.AppendHeader(table.Row{"", "naive", "Task.Take", "Locker"})
	t.AppendRows([]table.Row{
		{"units for sale", naive.total, stock.total, locked.total},
		{"sold (paid)", naive.paid, stock.paid, locked.paid},
		{"oversold", naive.oversold, stock.oversold, locked.oversold},
		{"customers who got two", naive.twice, stock.twice, locked.twice},
	})
	t.AppendSeparator()
	t.AppendRows([]table.Row{
		{"holds of the lock", "", "", locked.sections},
		{"a second, until first sold out", "", "", locked.rate},
		{"lock wait p50 / p99", "", "", joined(locked.waited.p50, locked.waited.p99)},
		{"overtaken in spite of it", "", "", locked.overtaken},
	})
	t.AppendSeparator()
	t.AppendRows([]table.Row{
		{"orders cancelled, unit sold again", "", stock.cancelled, locked.cancelled},
		{"cancelled too early", "", early(stock.late), early(locked.late)},
		{"cancelled late by p50 / p99 / max", "", stock.late.tell(), locked.late.tell()},
	})
	t.AppendSeparator()
	t.AppendRow(table.Row{"took, until all were paid", "", round(stock.took), round(locked.took)})
	return t.Render()
}

func (d spread) tell() string { return joined(d.p50, d.p99, d.max) }

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
