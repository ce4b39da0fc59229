package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

const (
	// searchEvery is how often top looks for queues that are new. Between, it asks those that it
	// knows.
	searchEvery = 10 * time.Second
	// searchShare is how many times as long as a search the pause behind it is, at the least:
	// beside many keys the server is to have other things to do.
	searchShare = 20
	// oldAfter is how long behind its time a look may be until its figures say so.
	oldAfter = 3 * time.Second
)

func (a *app) topCommand() *cobra.Command {
	var interval time.Duration
	var frames int
	c := &cobra.Command{
		Use: "top", Aliases: []string{"dash"}, Short: "Watch the queues, and how many tasks end in a second",
		Long: `Watch the queues. Keys: q quits, s sorts by the next column. The other columns are those of sluice queues.

DUE/S is by how many a second the due tasks have grown since the look before. FINISHED/S, RETRIED/S, BURIED/S and LOST/S are how many tasks a second,
in all processes, were finished, failed and are to be tried again, were put among the dead letters, or were lost: their leases ran out.

Each interval costs one small script for each queue; every ten seconds, or twenty times as long as
that takes, the queues are searched for, by SCAN.
Where standard output is no terminal, or with --frames or --json, it prints one table, or one line of JSON, for each interval.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < 200*time.Millisecond {
				return usagef("--interval is 200ms at the least")
			}
			rdb, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			w := &watch{a: a, rdb: rdb}
			if frames == 0 && !a.json && a.outIsTTY {
				return w.screen(cmd.Context(), interval)
			}
			return w.print(cmd.Context(), interval, frames)
		},
	}
	c.Flags().DurationVar(&interval, "interval", 2*time.Second, "how long between two looks")
	c.Flags().IntVar(&frames, "frames", 0, "end after so many (0: never)")
	return c
}

// watch asks for the queues again and again.
type watch struct {
	a        *app
	rdb      redis.UniversalClient
	names    []string
	next     time.Time // of the next search
	complete bool
	last     frame // that was seen
}

// frame is what was seen at one time.
type frame struct {
	at       time.Time
	rows     []queueRow
	complete bool
	err      error
}

// look returns the queues and their counts.
func (w *watch) look(ctx context.Context) frame {
	if from := time.Now(); from.After(w.next) {
		names, err := inspect.Queues(ctx, w.rdb, w.a.options)
		if err != nil && !errors.Is(err, inspect.ErrIncomplete) {
			return frame{at: time.Now(), err: err}
		}
		w.names, w.next, w.complete = names, time.Now().Add(pauseBehind(time.Since(from))), err == nil
	}
	rows, err := w.a.rows(ctx, w.rdb, w.names)
	if err != nil {
		return frame{at: time.Now(), err: err}
	}
	return w.rated(frame{time.Now(), rows, w.complete, nil})
}

// pauseBehind returns for how long no search follows one that took so long.
func pauseBehind(took time.Duration) time.Duration { return max(searchEvery, searchShare*took) }

// print prints a table for each interval.
func (w *watch) print(ctx context.Context, interval time.Duration, frames int) error {
	for i := 1; ; i++ {
		f := w.look(ctx)
		if f.err != nil {
			return f.err
		}
		if err := w.a.printQueues(f.rows, f.complete, queueColumns(f.at, false, true)); err != nil {
			return err
		}
		if i == frames {
			return nil
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// screen shows a table on the terminal's other screen, until the caller quits.
func (w *watch) screen(ctx context.Context, interval time.Duration) error {
	model := &topModel{ctx: ctx, watch: w, interval: interval, where: w.a.where(), width: 120, height: 40}
	program := tea.NewProgram(model, tea.WithContext(ctx), tea.WithInput(w.a.in), tea.WithOutput(w.a.out.Writer), tea.WithoutSignalHandler())
	_, err := program.Run()
	if errors.Is(err, tea.ErrProgramKilled) || errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}

// topModel is what the terminal shows. One goroutine of bubbletea's has it; the one look that is
// under way has the watch.
type topModel struct {
	ctx           context.Context
	watch         *watch
	interval      time.Duration
	where         string
	width, height int
	now           frame
	clock         time.Time // that of the terminal, to the second
	failed        error
	sortBy        int
}

// The columns by which the queues can be sorted: the largest first, names from a to z.
var sortings = []struct {
	name string
	less func(a, b queueRow) int
}{
	{"lateness", func(a, b queueRow) int { return int(min(1, max(-1, b.stats.Lateness-a.stats.Lateness))) }},
	{"due", func(a, b queueRow) int { return sign(b.stats.Due - a.stats.Due) }},
	{"dead", func(a, b queueRow) int { return sign(b.stats.Dead - a.stats.Dead) }},
	{"leased", func(a, b queueRow) int { return sign(b.stats.Leased - a.stats.Leased) }},
	{"name", func(a, b queueRow) int { return strings.Compare(a.name, b.name) }},
}

func sign(n int64) int { return int(min(1, max(-1, n))) }

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
// the one before has ended, so that there is one at a time.
func (m *topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "esc", "ctrl+c":
			return m, tea.Quit
		case "s":
			m.sortBy = (m.sortBy + 1) % len(sortings)
		}
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case frame:
		if m.failed = msg.err; msg.err == nil {
			m.now = msg
		}
		return m, tea.Tick(m.interval, func(time.Time) tea.Msg { return tick{} })
	case tick:
		return m, m.look
	case second:
		m.clock = time.Time(msg)
		return m, everySecond()
	}
	return m, nil
}

// View shows the table on the terminal's other screen.
func (m *topModel) View() tea.View {
	v := tea.NewView(m.text())
	v.AltScreen = true
	return v
}

// text is the table; what does not fit is left out.
func (m *topModel) text() string {
	rows := slices.Clone(m.now.rows)
	slices.SortStableFunc(rows, sortings[m.sortBy].less)
	var due, dead int64
	for _, r := range rows {
		due, dead = due+r.stats.Due, dead+r.stats.Dead
	}
	at := m.now.at.UTC().Format("15:04:05Z")
	if age := m.clock.Sub(m.now.at); age > m.interval+oldAfter && !m.now.at.IsZero() {
		at = "AS OF " + span(age) + " AGO"
	}
	head := fmt.Sprintf("sluice top  %s  %s  %s, due %s, dead %s  every %s, by %s", m.where, at, inspect.Plural(int64(len(rows)), "queue"), inspect.Count(due), inspect.Count(dead), m.interval, sortings[m.sortBy].name)
	lines := []string{head, "q quits, s sorts"}
	if m.failed != nil {
		lines[1] = "NO ANSWER, the figures are old: " + report.Escape(m.failed.Error())
	} else if !m.now.complete && !m.now.at.IsZero() {
		lines[1] = "NOT ALL KEYS WERE LOOKED AT: see --max-keys"
	}
	lines = append(lines, "")
	lines = append(lines, strings.Split(tableOf(queueColumns(m.now.at, false, true), rows), "\n")...)
	lines = lines[:min(len(lines), max(1, m.height-1))]
	for i, line := range lines {
		lines[i] = ansi.Truncate(strings.ReplaceAll(line, "\n", " "), m.width, "…")
	}
	return strings.Join(lines, "\n")
}

// rates are how many tasks ended in a second, between two looks at a queue, and by how many those
// that are due have grown.
type rates struct {
	Due      float64 `json:"due"`
	Finished float64 `json:"finished"`
	Retried  float64 `json:"retried"`
	Buried   float64 `json:"buried"`
	Lost     float64 `json:"lost"`
}

// rateColumns are what a table shows of rates.
var rateColumns = []column[queueRow]{
	rateColumn("due/s", "%+.0f", func(r *rates) float64 { return r.Due }),
	rateColumn("finished/s", "%.1f", func(r *rates) float64 { return r.Finished }),
	rateColumn("retried/s", "%.1f", func(r *rates) float64 { return r.Retried }),
	rateColumn("buried/s", "%.1f", func(r *rates) float64 { return r.Buried }),
	rateColumn("lost/s", "%.1f", func(r *rates) float64 { return r.Lost }),
}

func rateColumn(name, format string, of func(r *rates) float64) column[queueRow] {
	return column[queueRow]{name, true, func(r queueRow) any {
		if r.rates == nil || r.err != nil {
			return ""
		}
		return fmt.Sprintf(format, of(r.rates))
	}}
}

// rated gives the queues of a frame their rates since the one before, and keeps it.
func (w *watch) rated(f frame) frame {
	seconds := f.at.Sub(w.last.at).Seconds()
	before := map[string]queueRow{}
	for _, r := range w.last.rows {
		before[r.name] = r
	}
	for i, r := range f.rows {
		old, found := before[r.name]
		if !found || old.err != nil || r.err != nil || seconds <= 0 {
			continue
		}
		grown := func(from, to int64) float64 { return float64(to-from) / seconds }
		now := rates{
			Due: grown(old.stats.Due, r.stats.Due), Finished: grown(old.stats.Finished, r.stats.Finished), Retried: grown(old.stats.Retried, r.stats.Retried),
			Buried: grown(old.stats.Buried, r.stats.Buried), Lost: grown(old.stats.Lost, r.stats.Lost),
		}
		if min(now.Finished, now.Retried, now.Buried, now.Lost) >= 0 { // else they began anew, or a failover has lost some: unknown
			f.rows[i].rates = &now
		}
	}
	w.last = f
	return f
}
