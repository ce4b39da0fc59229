package main

import (
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

// TestTop_SearchesATwentiethOfTheTime keeps a server with many keys from being searched all the time.
func TestTop_SearchesATwentiethOfTheTime(t *testing.T) {
	require.Equal(t, searchEvery, pauseBehind(time.Millisecond))
	require.Equal(t, 5*time.Minute, pauseBehind(15*time.Second))
}

// TestTop_Model draws frames without a terminal.
func TestTop_Model(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	row := func(name string, due, dead int64, oldest time.Duration) queueRow {
		return queueRow{QueueInfo: inspect.QueueInfo{Name: name, Shards: 1}, stats: sluice.Stats{Due: due, Dead: dead, OldestDue: oldest}}
	}
	m := &topModel{watch: &watch{a: &app{}}, interval: time.Second, where: "host", width: 100, height: 20}
	m.Update(frame{at: at, rows: []queueRow{row("a", 100, 5, time.Second), row("b\x1b[2J", 10, 0, time.Minute)}, complete: true})
	_, next := m.Update(frame{at: at.Add(2 * time.Second), rows: []queueRow{row("a", 300, 5, time.Second), row("b\x1b[2J", 4, 0, time.Minute)}, complete: true})
	require.NotNil(t, next, "there is a next look")
	lines := strings.Split(m.View(), "\n")
	require.Contains(t, lines[0], "03:04:07Z  2 queues, due 304, dead 5")
	require.Contains(t, lines[4], `"b\x1b[2J"`, "the one that waits longest is first")
	require.Contains(t, lines[4], "-3")
	require.Contains(t, lines[5], "+100")
	requirePlain(t, m.View(), "view")

	m.Update(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune("s")})
	require.True(t, strings.HasPrefix(strings.Split(m.View(), "\n")[4], "a "), "sorted by due")
	m.Update(tea.WindowSizeMsg{Width: 20, Height: 5})
	require.LessOrEqual(t, strings.Count(m.View(), "\n"), 4)
	for line := range strings.SplitSeq(m.View(), "\n") {
		require.LessOrEqual(t, len([]rune(line)), 20)
	}
	m.Update(tea.WindowSizeMsg{Width: 100, Height: 20})
	limited := row("a", 300, 5, time.Second)
	limited.stats.Leased, limited.stats.Limits = 3, sluice.Limits{Running: 3}
	m.Update(tea.WindowSizeMsg{Width: 130, Height: 20})
	m.Update(frame{at: at.Add(4 * time.Second), rows: []queueRow{limited}, complete: true})
	require.Contains(t, m.View(), "at its limit: 3 of 3 running")
	m.Update(frame{at: at, err: sluice.ErrUnavailable})
	require.Contains(t, m.View(), "NO ANSWER")
	require.Contains(t, m.View(), "due 300", "the last figures stay")
	_, quit := m.Update(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune("q")})
	require.Equal(t, tea.QuitMsg{}, quit())
}
