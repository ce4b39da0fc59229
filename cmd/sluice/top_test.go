package main

import (
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestTop_SearchesATwentiethOfTheTime keeps a server with many keys from being searched all the
// time.
func TestTop_SearchesATwentiethOfTheTime(t *testing.T) {
	require.Equal(t, searchEvery, pauseBehind(time.Millisecond))
	require.Equal(t, 5*time.Minute, pauseBehind(15*time.Second))
}

// TestTop_Model draws frames without a terminal.
func TestTop_Model(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	row := func(name string, due, dead int64, oldest time.Duration) queueRow {
		return queueRow{name: name, stats: sluice.Stats{Due: due, Dead: dead, Lateness: oldest}}
	}
	m := &topModel{watch: &watch{a: &app{}}, interval: time.Second, where: "host", width: 100, height: 20}
	see := func(f frame) tea.Cmd {
		_, next := m.Update(m.watch.rated(f))
		return next
	}
	see(frame{at: at, rows: []queueRow{row("a", 100, 5, time.Second), row("b\x1b[2J", 10, 0, time.Minute)}, complete: true})
	next := see(frame{at: at.Add(2 * time.Second), rows: []queueRow{row("a", 300, 5, time.Second), row("b\x1b[2J", 4, 0, time.Minute)}, complete: true})
	require.NotNil(t, next, "there is a next look")
	lines := strings.Split(m.text(), "\n")
	require.Contains(t, lines[0], "03:04:07Z  2 queues, due 304, dead 5")
	require.Contains(t, lines[4], `"b\x1b[2J"`, "the one that waits longest is first")
	require.Contains(t, lines[4], "-3")
	require.Contains(t, lines[5], "+100")
	requirePlain(t, m.text(), "view")

	m.Update(tea.KeyPressMsg{Code: 's', Text: "s"})
	require.True(t, strings.HasPrefix(strings.Split(m.text(), "\n")[4], "a "), "sorted by due")
	m.Update(tea.WindowSizeMsg{Width: 20, Height: 5})
	require.LessOrEqual(t, strings.Count(m.text(), "\n"), 4)
	for line := range strings.SplitSeq(m.text(), "\n") {
		require.LessOrEqual(t, len([]rune(line)), 20)
	}
	m.Update(tea.WindowSizeMsg{Width: 100, Height: 20})
	limited := row("a", 300, 5, time.Second)
	limited.stats.Leased, limited.stats.Limits = 3, sluice.Limits{Running: 3}
	m.Update(tea.WindowSizeMsg{Width: 180, Height: 20})
	see(frame{at: at.Add(4 * time.Second), rows: []queueRow{limited}, complete: true})
	require.Contains(t, m.text(), "at its limit: 3 of 3 running")
	m.Update(frame{at: at, err: sluice.ErrUnavailable})
	require.Contains(t, m.text(), "NO ANSWER")
	require.Contains(t, m.text(), "due 300", "the last figures stay")
	_, quit := m.Update(tea.KeyPressMsg{Code: 'q', Text: "q"})
	require.Equal(t, tea.QuitMsg{}, quit())
}

// TestTop_Rates has what ended between two looks. A queue that is new has no rates, and one of
// which a count fell: it began anew, or a failover has lost some.
func TestTop_Rates(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	row := func(name string, s sluice.Stats) queueRow {
		return queueRow{name: name, stats: s}
	}
	w := &watch{}
	f := w.rated(frame{at: at, rows: []queueRow{row("a", sluice.Stats{Finished: 100, Retried: 10, Buried: 50, Lost: 1}), row("fell", sluice.Stats{Finished: 5, Lost: 1})}})
	require.Nil(t, f.rows[0].rates)
	f = w.rated(frame{at: at.Add(2 * time.Second), rows: []queueRow{
		row("a", sluice.Stats{Due: 4, Finished: 107, Retried: 14, Buried: 50, Lost: 3}), row("b", sluice.Stats{Finished: 100}), row("fell", sluice.Stats{Finished: 4}), {err: sluice.ErrCorrupt},
	}})
	require.Equal(t, &rates{Due: 2, Finished: 3.5, Retried: 2, Lost: 1}, f.rows[0].rates)
	require.Nil(t, f.rows[1].rates)
	require.Nil(t, f.rows[2].rates)
	text := tableOf(queueColumns(at, false, true), f.rows)
	require.Regexp(t, `a +4 +\+2 +3\.5 +2\.0 +0\.0 +1\.0 +0 +0 +0 .* NO WORKER\n`, text)
	require.Contains(t, text, "ERROR")
	f = w.rated(frame{at: at.Add(2 * time.Second), rows: f.rows})
	require.NotNil(t, f.rows, "two looks at one time have no rates, and do not divide by zero")
}

// TestTop_SaysNoWorker in words, where tasks are due, and since when.
func TestTop_SaysNoWorker(t *testing.T) {
	now := time.Now()
	for want, s := range map[string]sluice.Stats{
		"":                            {Leased: 1},
		"5 trimmed":                   {Due: 1, Workers: 1, Trimmed: 5},
		"NO WORKER":                   {Due: 1},
		"NO WORKER for 1m30s; PAUSED": {Due: 1, WorkerSeen: now.Add(-90 * time.Second), Paused: true},
	} {
		require.Equal(t, want, queueRow{stats: s}.notes(now))
	}
}
