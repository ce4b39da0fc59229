package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestTop_SearchesATwentiethOfTheTime keeps a server with many keys from being searched all the
// time.
func TestTop_SearchesATwentiethOfTheTime(t *testing.T) {
	require.Equal(t, searchEvery, pauseBehind(time.Millisecond))
	require.Equal(t, 5*time.Minute, pauseBehind(15*time.Second))
	require.Equal(t, 15*time.Minute, pauseBehind(time.Hour))
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
		"5 trimmed":                   {Due: 1, Workers: 1, Waiting: 1, Trimmed: 5},
		"NO ROOM":                     {Due: 1, Leased: 1, Workers: 1},
		"LATE":                        {Due: 1, Workers: 1, Waiting: 1, Lateness: time.Hour},
		"NO WORKER":                   {Due: 1},
		"NO WORKER for 1m30s; PAUSED": {Due: 1, WorkerSeen: now.Add(-90 * time.Second), Paused: true},
	} {
		require.Equal(t, want, queueRow{stats: s}.notes(now))
	}
}

// TestTop_OpensAQueue by its keys, and goes back; what is shown of another queue does not get
// there.
func TestTop_OpensAQueue(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	q := s.queue("orders")
	s.fill(q)
	_, err := s.queue("mails").Enqueue(t.Context(), sluice.Task{ID: "m"})
	require.NoError(t, err)
	a := &app{lookupEnv: func(string) (string, bool) { return "", false }}
	w := &watch{a: a, rdb: s.rdb}
	m := &topModel{ctx: t.Context(), watch: w, interval: time.Second, where: "host", width: 150, height: 40}
	press := func(key tea.KeyPressMsg) tea.Cmd {
		_, cmd := m.Update(key)
		return cmd
	}
	require.Nil(t, press(tea.KeyPressMsg{Code: tea.KeyEnter}), "nothing is there yet")
	m.Update(m.look())
	for range 5 { // at the end it stays
		press(tea.KeyPressMsg{Code: tea.KeyDown})
	}
	require.Equal(t, 1, m.place(m.sorted()))
	chosen := m.chosen
	require.Contains(t, m.text(), chosenMark, "without colours, too")
	look := press(tea.KeyPressMsg{Code: tea.KeyEnter})
	require.NotNil(t, look)
	require.Contains(t, m.text(), "Looking")
	m.Update(openQueue{name: "another", at: time.Now()})
	require.NotContains(t, m.text(), "another")
	m.looking = true
	m.Update(look())
	require.False(t, m.looking)
	text := m.text()
	require.Contains(t, text, chosen+"\n")
	require.Contains(t, text, "0 Workers")
	require.NotNil(t, press(tea.KeyPressMsg{Code: 'q', Text: "q"}))
	require.Nil(t, press(tea.KeyPressMsg{Code: tea.KeyEscape}))
	require.Contains(t, m.text(), "NAME ", "the list again")
	m.chosen = "orders"
	look = press(tea.KeyPressMsg{Code: tea.KeyEnter})
	m.Update(look())
	require.Regexp(t, `(?s)\d dead letters?, by reason.*\d  `, m.text())
	requirePlain(t, m.text(), "view")
	_, quit := m.Update(tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl})
	require.Equal(t, tea.QuitMsg{}, quit())
}

// TestTop_ShowsWhereItIsInAList that is longer than the terminal.
func TestTop_ShowsWhereItIsInAList(t *testing.T) {
	t.Parallel()
	m := &topModel{watch: &watch{a: &app{}}, interval: time.Second, width: 150, height: 15}
	f := frame{at: time.Now(), complete: true}
	for i := range 100 {
		f.rows = append(f.rows, queueRow{name: fmt.Sprintf("q%02d", i)})
	}
	m.Update(f)
	require.Contains(t, m.text(), "q00 ")
	require.NotContains(t, m.text(), chosenMark, "nothing is chosen yet")
	for range 99 {
		m.Update(tea.KeyPressMsg{Code: tea.KeyDown})
		require.Regexp(t, m.chosen+" .*"+chosenMark, m.text())
		require.LessOrEqual(t, strings.Count(m.text(), "\n"), 14)
	}
	require.Equal(t, "q99", m.chosen)
	m.Update(tea.KeyPressMsg{Code: tea.KeyPgUp})
	require.Equal(t, "q89", m.chosen)
}

// TestTop_Colours are of the worst sign, and none where NO_COLOR says so.
func TestTop_Colours(t *testing.T) {
	t.Parallel()
	rows := []queueRow{
		{name: "none", stats: sluice.Stats{Due: 1}},
		{name: "full", stats: sluice.Stats{Due: 1, Leased: 1, Workers: 1}},
		{name: "well", stats: sluice.Stats{Due: 1, Workers: 1, Waiting: 1}},
		{name: "stuck", stats: sluice.Stats{Workers: 1}, stuck: 2},
		{name: "broken", err: sluice.ErrCorrupt},
	}
	m := &topModel{watch: &watch{a: &app{}}, interval: time.Second, width: 150, height: 20, colour: true, chosen: "well"}
	m.Update(frame{at: time.Now(), rows: rows, complete: true})
	lines := map[string]string{}
	for line := range strings.SplitSeq(m.text(), "\n") {
		name, _, _ := strings.Cut(ansi.Strip(line), " ")
		lines[name] = line
	}
	const red, yellow, reverse = "\x1b[31m", "\x1b[33m", "\x1b[7m"
	for name, want := range map[string]string{"none": red, "full": yellow, "well": reverse, "stuck": red, "broken": red} {
		require.True(t, strings.HasPrefix(lines[name], want), "%s: %q", name, lines[name])
	}
	require.Contains(t, lines["stuck"], "2 STUCK")
	m.colour = false
	requirePlain(t, m.text(), "view")
	for name, env := range map[string]map[string]string{"NO_COLOR": {"NO_COLOR": "1"}, "dumb": {"TERM": "dumb"}, "": {"TERM": "xterm"}} {
		a := &app{lookupEnv: func(key string) (string, bool) { v, ok := env[key]; return v, ok }}
		require.Equal(t, name == "", a.hasColours(), name)
	}
}

// TestTop_TellsStuckHandlers, which it asks for where Workers run, and not with each frame.
func TestTop_TellsStuckHandlers(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	q := s.queue("orders")
	s.fill(q)
	w := &watch{a: &app{}, rdb: s.rdb}
	w.stuck, w.nextAsk = map[string]int64{"orders": 3}, time.Now().Add(time.Hour)
	f := w.look(t.Context())
	require.EqualValues(t, 3, f.rows[0].stuck)
	require.Contains(t, f.rows[0].notes(f.at), "3 STUCK")
	w.nextAsk = time.Time{}
	f = w.look(t.Context())
	require.Zero(t, f.rows[0].stuck, "it asked again, and no Worker runs")
	require.True(t, w.nextAsk.After(time.Now()))
}
