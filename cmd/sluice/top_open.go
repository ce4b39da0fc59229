package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

const (
	// mostLetters is at how many dead letters top looks for their reasons, and longestLetters for how
	// long at the most.
	mostLetters    = 5000
	longestLetters = time.Second
	// lettersEvery is how often it does, while there are any.
	lettersEvery = 10 * time.Second
)

// openQueue is a queue that was looked into.
type openQueue struct {
	name      string
	row       queueRow
	workers   []sluice.WorkerInfo
	reasons   inspect.Reasons
	reasonsAt time.Time // when the letters were looked at
	at        time.Time
	err       error // of the Workers or of the reasons
}

// lookInside begins a look at the open queue, if there is one and no look is under way.
func (m *topModel) lookInside() tea.Cmd {
	if !m.isOpen || m.looking {
		return nil
	}
	m.looking = true
	name, before, w := m.chosen, m.open, m.watch
	ctx := m.ctx
	return func() tea.Msg { return w.inside(ctx, name, before) }
}

// inside looks at a queue. The reasons are those of the look before if they are not old.
func (w *watch) inside(ctx context.Context, name string, before openQueue) openQueue {
	now := openQueue{name: name, row: queueRow{name: name}, at: time.Now()}
	q, err := inspect.Open(w.rdb, name, w.a.options)
	if err == nil {
		now.row.stats, err = q.Stats(ctx)
	}
	if now.row.err = err; err != nil {
		return now
	}
	if now.row.stats.Workers > 0 {
		now.workers, now.err = q.Workers(ctx)
	}
	for _, worker := range now.workers {
		now.row.stuck += int64(worker.Stuck)
	}
	if now.reasons, now.reasonsAt = before.reasons, before.reasonsAt; now.at.Sub(before.reasonsAt) >= lettersEvery {
		now.reasons, now.reasonsAt = inspect.Reasons{}, now.at
		if now.row.stats.Dead > 0 && now.err == nil {
			now.reasons, now.err = inspect.ReasonsOf(ctx, q, mostLetters, longestLetters)
		}
	}
	return now
}

// inside are the lines of the open queue: its states, its Workers, and why its dead letters are
// dead.
func (m *topModel) inside() []line {
	o := m.open
	if o.at.IsZero() {
		return []line{{show(m.chosen), lookHead}, {"Looking…", lookFaint}}
	}
	lines := []line{{show(o.name), lookHead}}
	if note := o.row.notes(o.at); note != "" {
		lines = append(lines, line{note, lookOf(o.row)})
	}
	if o.row.err != nil {
		return lines
	}
	s := o.row.stats
	lines = append(lines, line{}, line{fmt.Sprintf("due %s  scheduled %s  waiting in groups %s  leased %s  dead %s  done %s", inspect.Count(s.Due), inspect.Count(s.Scheduled), inspect.Count(s.GroupWaiting), inspect.Count(s.Leased), inspect.Count(s.Dead), inspect.Count(s.Done)), lookPlain},
		line{fmt.Sprintf("finished %s (discarded %s)  retried %s  buried %s  lost %s  trimmed %s", inspect.Count(s.Finished), inspect.Count(s.Discarded), inspect.Count(s.Retried), inspect.Count(s.Buried), inspect.Count(s.Lost), inspect.Count(s.Trimmed)), lookPlain})
	if s.Due > 0 {
		lines = append(lines, line{"the first due task waits for " + span(s.Lateness), lookPlain})
	}
	if o.err != nil {
		lines = append(lines, line{}, line{"NOT ALL COULD BE READ: " + report.Escape(o.err.Error()), lookBad})
	}
	lines = append(lines, line{}, line{inspect.Plural(int64(len(o.workers)), "Worker"), lookHead})
	if len(o.workers) > 0 {
		var seats []seat
		for _, worker := range o.workers {
			seats = append(seats, seat{o.name, worker})
		}
		for text := range strings.SplitSeq(tableWithin(m.width, seatColumns(o.at)[1:], seats), "\n") {
			lines = append(lines, line{text, lookPlain})
		}
	}
	return append(lines, o.reasonLines()...)
}

// reasonLines says why the dead letters are dead.
func (o openQueue) reasonLines() []line {
	if len(o.reasons.Counts) == 0 {
		return nil
	}
	head := inspect.Plural(int64(o.reasons.Looked), "dead letter") + ", by reason"
	if o.reasons.More {
		head = fmt.Sprintf("The first %s dead letters, by reason", inspect.Count(int64(o.reasons.Looked)))
	}
	lines := []line{{}, {head, lookHead}}
	for _, c := range o.reasons.Counts {
		reason := show(c.Reason)
		if c.Cut {
			reason += "…"
		}
		lines = append(lines, line{fmt.Sprintf("%8s  %s", inspect.Count(int64(c.Count)), reason), lookPlain})
	}
	if o.reasons.Others > 0 {
		lines = append(lines, line{fmt.Sprintf("%8s  others", inspect.Count(int64(o.reasons.Others))), lookPlain})
	}
	return lines
}
