package main

import (
	"fmt"
	"os"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"
)

const (
	// leastCut is how many characters of a cell are left at the least, and columnGap how many spaces
	// stand between two columns.
	leastCut, columnGap = 12, 2
)

// width is how wide a table may be: as the terminal, or 0 for any width, where the output is no
// terminal or the caller wants it whole.
func (a *app) width() int {
	f, isFile := a.out.Writer.(*os.File)
	if !a.outIsTTY || a.whole || !isFile {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// tableWithin is tableOf, with the texts of the widest columns cut in their middle until the table
// is no wider than width, which is any for 0. Figures are never cut, so that a table with many of
// them may stay wider.
func tableWithin[T any](width int, columns []column[T], rows []T) string {
	if width <= 0 {
		return tableOf(columns, rows)
	}
	widths := make([]int, len(columns))
	total := columnGap * (len(columns) - 1)
	for i, c := range columns {
		widths[i] = ansi.StringWidth(c.name)
		for _, row := range rows {
			widths[i] = max(widths[i], ansi.StringWidth(fmt.Sprint(c.cell(row))))
		}
		total += widths[i]
	}
	fitted := append([]column[T]{}, columns...)
	for total > width {
		widest := -1
		for i, c := range columns {
			if !c.right && widths[i] > leastCut && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
		total--
		c, most := columns[widest], widths[widest]
		fitted[widest].cell = func(row T) any { return middle(fmt.Sprint(c.cell(row)), most) }
	}
	return tableOf(fitted, rows)
}

// middle cuts a text in its middle, so that it is no wider than n.
func middle(s string, n int) string {
	width := ansi.StringWidth(s)
	if width <= n {
		return s
	}
	head := n / 2
	return ansi.Truncate(s, head, "") + "…" + ansi.TruncateLeft(s, width-(n-head-1), "")
}
