package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// output is where a command's answer goes. It keeps its first error, which the program returns at its
// end: what a script saves before it purges must be whole.
type output struct {
	io.Writer
	failed error
}

func (o *output) Write(p []byte) (int, error) {
	if o.failed != nil {
		return 0, o.failed
	}
	n, err := o.Writer.Write(p)
	if err != nil {
		o.failed = localError{fmt.Errorf("the output cannot be written: %w", err)}
	}
	return n, o.failed
}

// show returns text that was written by others as the operator is to see it: as it is if it is
// plain, else in quotation marks, with Go's escapes. It never holds what moves a terminal's cursor,
// changes its colours or reverses what follows. --quoted reads it back.
func show(s string) string {
	if s == "" || s[0] == ' ' || s[len(s)-1] == ' ' || !utf8.ValidString(s) || strings.ContainsAny(s, "\"\\") {
		return strconv.Quote(s)
	}
	for _, r := range s {
		if !strconv.IsPrint(r) {
			return strconv.Quote(s)
		}
	}
	return s
}

// unshow reads what show has printed.
func unshow(s string) (string, error) {
	if !strings.HasPrefix(s, `"`) {
		return s, nil
	}
	plain, err := strconv.Unquote(s)
	if err != nil {
		return "", usagef("%s is not a quoted text as this program prints it", show(s))
	}
	return plain, nil
}

// short cuts what show has returned to a number of characters.
func short(shown string, n int) string {
	if utf8.RuneCountInString(shown) <= n {
		return shown
	}
	return string([]rune(shown)[:n-1]) + "…"
}

// column is one of a table: its name, whether it stands at the right, as numbers do, and what it
// shows of each row.
type column[T any] struct {
	name  string
	right bool
	cell  func(row T) any
}

// tableOf returns a table without lines, for a terminal and for tools that cut columns.
func tableOf[T any](columns []column[T], rows []T) string {
	t := table.NewWriter()
	style := table.StyleDefault
	style.Box = table.BoxStyle{PaddingRight: "  ", MiddleHorizontal: " "}
	style.Options = table.Options{}
	style.Format.Header = text.FormatUpper
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	var header table.Row
	var configs []table.ColumnConfig
	for i, c := range columns {
		header = append(header, c.name)
		if c.right {
			configs = append(configs, table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignRight})
		}
	}
	t.AppendHeader(header)
	t.SetColumnConfigs(configs)
	for _, row := range rows {
		cells := make(table.Row, len(columns))
		for i, c := range columns {
			cells[i] = c.cell(row)
		}
		t.AppendRow(cells)
	}
	return t.Render()
}

// span prints a duration with two units at the most.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + span(-d)
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return strconv.FormatFloat(math.Floor(d.Seconds()*10)/10, 'f', 1, 64) + "s"
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// moment prints a time in UTC, to the second; "-" for none.
func moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05Z")
}

// ago prints how long before now a time was, with the time; "-" for none.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return moment(t) + ", " + span(max(0, now.Sub(t))) + " ago"
}

// spanSince prints for how long a time has passed; "-" for none.
func spanSince(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return span(max(0, now.Sub(t)))
}
