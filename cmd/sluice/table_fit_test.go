package main

import (
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/require"
)

// TestTable_FitsTheTerminal: the widest texts are cut in their middle, figures are not, and nothing
// is where it fits, or where there is no terminal.
func TestTable_FitsTheTerminal(t *testing.T) {
	t.Parallel()
	type row struct {
		name, note string
		n          int
	}
	columns := []column[row]{
		{"name", false, func(r row) any { return r.name }},
		{"n", true, func(r row) any { return r.n }},
		{"note", false, func(r row) any { return r.note }},
	}
	rows := []row{
		{"begin" + strings.Repeat("x", 200) + "end", "short", 123456},
		{strings.Repeat("界", 90), strings.Repeat("n", 60), 1},
		{"plain", "-", 2},
	}
	whole := tableWithin(0, columns, rows)
	require.Equal(t, tableOf(columns, rows), whole)
	require.NotContains(t, whole, "…")
	require.Equal(t, whole, tableWithin(400, columns, rows))
	for _, width := range []int{60, 80, 120, 200} {
		table := tableWithin(width, columns, rows)
		for line := range strings.SplitSeq(table, "\n") {
			require.LessOrEqual(t, ansi.StringWidth(line), width, line)
		}
		require.Regexp(t, `(?m)^beginx+…x*end +123456`, table)
		require.Contains(t, table, "plain ")
	}
	require.Contains(t, tableWithin(3, columns, rows), "123456", "figures stay")
	for want, s := range map[string]string{"abcdef": "abcdef", "abc…gh": "abcdefgh", "": ""} {
		require.Equal(t, want, middle(s, 6))
	}
}
