package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

// screen shows a table on the terminal's other screen, until the caller quits.
func (w *watch) screen(ctx context.Context, interval time.Duration) error {
	model := &topModel{ctx: ctx, watch: w, interval: interval, where: w.a.where(), width: 120, height: 40, colour: w.a.hasColours()}
	program := tea.NewProgram(model, tea.WithContext(ctx), tea.WithInput(w.a.in), tea.WithOutput(w.a.out.Writer), tea.WithoutSignalHandler())
	_, err := program.Run()
	if errors.Is(err, tea.ErrProgramKilled) || errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}

// hasColours reports whether the terminal may be sent colours: see no-color.org.
func (a *app) hasColours() bool {
	no, _ := a.lookupEnv("NO_COLOR")
	terminal, _ := a.lookupEnv("TERM")
	return no == "" && terminal != "dumb"
}

// topModel is what the terminal shows: the queues or, if one is open, that. One goroutine of
// bubbletea's has it; the one look that is under way has the watch.
type topModel struct {
	ctx           context.Context
	watch         *watch
	interval      time.Duration
	where         string
	width, height int
	colour        bool
	now           frame
	clock         time.Time // that of the terminal, to the second
	failed        error
	sortBy        int
	chosen        string // the queue that enter opens; "" for the first
	isOpen        bool   // the chosen queue is shown
	open          openQueue
	looking       bool // a look at the open queue is under way
}

// The columns by which the queues can be sorted: the largest first, names from a to z.
var sortings = []struct {
	name string
	less func(a, b queueRow) int
}{
	{"worst", byTrouble},
	{"lateness", func(a, b queueRow) int { return cmp.Compare(b.stats.Lateness, a.stats.Lateness) }},
	{"due", func(a, b queueRow) int { return cmp.Compare(b.stats.Due, a.stats.Due) }},
	{"dead", func(a, b queueRow) int { return cmp.Compare(b.stats.Dead, a.stats.Dead) }},
	{"leased", func(a, b queueRow) int { return cmp.Compare(b.stats.Leased, a.stats.Leased) }},
	{"name", func(a, b queueRow) int { return strings.Compare(a.name, b.name) }},
}

// byTrouble has the queues come first that cannot be read, then by their worst sign, and by how
// long the first due task waits.
func byTrouble(a, b queueRow) int {
	rank := func(r queueRow) inspect.Sign {
		if r.err != nil {
			return inspect.SignStuck + 1
		}
		return inspect.Worst(inspect.Signs(r.stats, r.stuck))
	}
	return cmp.Or(cmp.Compare(rank(b), rank(a)), cmp.Compare(b.stats.Lateness, a.stats.Lateness), cmp.Compare(b.stats.Dead, a.stats.Dead))
}

type tick struct{}

// second comes each second, so that figures say how old they are while a look hangs.
type second time.Time

func everySecond() tea.Cmd {
	return tea.Tick(time.Second, func(at time.Time) tea.Msg { return second(at) })
}

func (m *topModel) look() tea.Msg { return m.watch.look(m.ctx) }

// Init begins with the first look.
func (m *topModel) Init() tea.Cmd { return tea.Batch(m.look, everySecond()) }

// Update takes keys, the terminal's size and what was seen. The next look begins an interval after
// the one before has ended, so that there is one at a time; one at the open queue follows it.
func (m *topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.KeyPressMsg:
		return m, m.press(msg.String())
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case frame:
		if m.failed = msg.err; msg.err == nil {
			m.now = msg
		}
		next := tea.Tick(m.interval, func(time.Time) tea.Msg { return tick{} })
		return m, tea.Batch(next, m.lookInside())
	case openQueue:
		m.looking = false
		if msg.name != m.chosen { // another one was opened meanwhile
			return m, m.lookInside()
		}
		m.open = msg
	case tick:
		return m, m.look
	case second:
		m.clock = time.Time(msg)
		return m, everySecond()
	}
	return m, nil
}

// press does what a key is for.
func (m *topModel) press(key string) tea.Cmd {
	switch key {
	case "q", "ctrl+c":
		return tea.Quit
	case "esc", "backspace", "left", "h":
		if m.isOpen {
			m.isOpen = false
			return nil
		}
		if key == "esc" {
			return tea.Quit
		}
	}
	if m.isOpen {
		return nil
	}
	switch key {
	case "s":
		m.sortBy = (m.sortBy + 1) % len(sortings)
	case "up", "k":
		m.choose(-1)
	case "down", "j":
		m.choose(1)
	case "pgup":
		m.choose(-m.rowsShown())
	case "pgdown":
		m.choose(m.rowsShown())
	case "enter", "right", "l":
		if rows := m.sorted(); len(rows) > 0 {
			m.chosen, m.isOpen, m.open = rows[m.place(rows)].name, true, openQueue{}
			return m.lookInside()
		}
	}
	return nil
}

// choose moves the choice by so many rows.
func (m *topModel) choose(by int) {
	rows := m.sorted()
	if len(rows) > 0 {
		m.chosen = rows[min(max(m.place(rows)+by, 0), len(rows)-1)].name
	}
}

// sorted returns the queues in the order in which they are shown.
func (m *topModel) sorted() []queueRow {
	rows := slices.Clone(m.now.rows)
	slices.SortStableFunc(rows, sortings[m.sortBy].less)
	return rows
}

// place returns where the chosen queue is: at the beginning, if there is none.
func (m *topModel) place(rows []queueRow) int {
	return max(0, slices.IndexFunc(rows, func(r queueRow) bool { return r.name == m.chosen && m.chosen != "" }))
}

// rowsShown is how many rows of a table fit below the heads.
func (m *topModel) rowsShown() int { return max(1, m.height-1-4) }

// View shows the table on the terminal's other screen.
func (m *topModel) View() tea.View {
	v := tea.NewView(m.text())
	v.AltScreen = true
	return v
}

// text is what the terminal shows; what does not fit is left out.
func (m *topModel) text() string {
	lines := m.heads()
	if m.isOpen {
		lines = append(lines, m.inside()...)
	} else {
		lines = append(lines, m.queues()...)
	}
	lines = lines[:min(len(lines), max(1, m.height-1))]
	for i, l := range lines {
		room := m.width
		if l.look&lookChosen != 0 && !m.colour {
			room = max(0, room-len(chosenMark))
		}
		lines[i].text = ansi.Truncate(strings.ReplaceAll(l.text, "\n", " "), room, "…")
	}
	return paint(lines, m.colour)
}

// heads are the lines above the figures.
func (m *topModel) heads() []line {
	var due, dead int64
	for _, r := range m.now.rows {
		due, dead = due+r.stats.Due, dead+r.stats.Dead
	}
	at := m.now.at.UTC().Format("15:04:05Z")
	if age := m.clock.Sub(m.now.at); age > m.interval+oldAfter && !m.now.at.IsZero() {
		at = "AS OF " + span(age) + " AGO"
	}
	head := fmt.Sprintf("sluice top  %s  %s  %s, due %s, dead %s  every %s, by %s", m.where, at, inspect.Plural(int64(len(m.now.rows)), "queue"), inspect.Count(due), inspect.Count(dead), m.interval, sortings[m.sortBy].name)
	keys := line{text: "q quits, s sorts, arrows and enter open a queue", look: lookFaint}
	if m.isOpen {
		keys.text = "q quits, esc goes back"
	}
	if m.failed != nil {
		keys = line{"NO ANSWER, the figures are old: " + report.Escape(m.failed.Error()), lookBad}
	} else if !m.now.complete && !m.now.at.IsZero() {
		keys = line{"NOT ALL KEYS WERE LOOKED AT: see --max-keys", lookWarning}
	}
	return []line{{head, lookHead}, keys, {}}
}

// queues is the table of the queues: as much of it as fits, with the chosen one.
func (m *topModel) queues() []line {
	rows := m.sorted()
	place, fits := m.place(rows), m.rowsShown()
	first := min(max(0, place-fits/2), max(0, len(rows)-fits))
	if place < fits {
		first = 0
	}
	rows = rows[first:min(len(rows), first+fits)]
	var lines []line
	for i, text := range strings.Split(tableWithin(m.width, queueColumns(m.now.at, false, true), rows), "\n") {
		l := line{text, lookPlain}
		switch {
		case i == 0:
			l.look = lookHead
		case i-1 < len(rows):
			l.look = lookOf(rows[i-1])
			if i-1 == place-first && m.chosen != "" {
				l.look |= lookChosen
			}
		}
		lines = append(lines, l)
	}
	return lines
}
