package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

// occurrence is the next run of a periodic task.
type occurrence struct {
	sluice.TaskInfo
	next, last time.Time // last is zero if there was none
}

// occurrenceOf returns what a Worker has enqueued for a schedule of its list; false for another
// task. Its header says so: see sluice.Periodic.
func occurrenceOf(t sluice.TaskInfo) (o occurrence, ok bool) {
	if t.Header["sluice-period-of"] != t.ID {
		return o, false
	}
	o.TaskInfo = t
	o.next, _ = time.Parse(time.RFC3339Nano, t.Header["sluice-period"])
	o.last, _ = time.Parse(time.RFC3339Nano, t.Header["sluice-period-before"])
	return o, !o.next.IsZero()
}

func (a *app) periodicCommand() *cobra.Command {
	return &cobra.Command{
		Use: "periodic QUEUE", Short: "List the periodic tasks of a queue, with their next and last runs",
		Long: `List the periodic tasks of a queue, with their next and last runs: those of the Workers' lists (Worker.Periodic). LAST is the time of the
last run that has ended. It reads all tasks of the queue that are scheduled, due, leased or dead, with their payloads.`,
		Example: `  sluice periodic reports`,
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.periodic(cmd.Context(), args[0]) },
	}
}

// periodicJSON is a periodic task, in JSON.
type periodicJSON struct {
	ID       string  `json:"id"`
	IDBase64 string  `json:"id_base64,omitempty"`
	Kind     string  `json:"kind,omitempty"`
	State    string  `json:"state"`
	Next     *string `json:"next"`
	Last     *string `json:"last"` // the last run that has ended; null for none
	Attempt  int     `json:"attempt"`
	Reason   string  `json:"reason,omitempty"`
}

func (a *app) periodic(ctx context.Context, argument string) error {
	q, _, err := a.open(ctx, argument)
	if err != nil {
		return err
	}
	found, err := a.occurrences(ctx, q)
	if err != nil {
		return err
	}
	if a.json {
		list := []periodicJSON{}
		for _, o := range found {
			j := periodicJSON{Kind: report.Escape(o.Kind), State: o.State.String(), Next: report.Time(o.next), Last: report.Time(o.last), Attempt: o.Attempt, Reason: report.Escape(o.Reason)}
			j.ID, j.IDBase64 = report.Bytes(o.ID)
			list = append(list, j)
		}
		return report.Print(a.out, list)
	}
	if len(found) == 0 {
		_, err := fmt.Fprintln(a.errOut, "No periodic task: a Worker with Periodic puts them there when it starts.")
		return err
	}
	now := a.now(ctx)
	columns := []column[occurrence]{
		{"id", false, func(o occurrence) any { return show(o.ID) }},
		{"kind", false, func(o occurrence) any { return shownOrDash(o.Kind) }},
		{"state", false, func(o occurrence) any { return o.State.String() }},
		{"next", false, func(o occurrence) any { return moment(o.next) }},
		{"in", true, func(o occurrence) any { return span(max(0, o.next.Sub(now))) }},
		{"last", false, func(o occurrence) any { return momentOrNone(o.last) }},
		{"attempts", true, func(o occurrence) any { return o.Attempt }},
		{"last error", false, func(o occurrence) any { return cut(shownOrDash(o.Reason), 80, false) }},
	}
	_, err = fmt.Fprintln(a.out, tableWithin(a.width(), columns, found))
	return err
}

func shownOrDash(text string) string {
	if text == "" {
		return "-"
	}
	return show(text)
}

func momentOrNone(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return moment(t)
}

// occurrences reads the periodic tasks of a queue, in the order of their next runs.
func (a *app) occurrences(ctx context.Context, q *sluice.Queue) (found []occurrence, err error) {
	p := a.newProgress("looking", -1)
	defer p.end()
	for _, state := range []sluice.State{sluice.StateScheduled, sluice.StateDue, sluice.StateLeased, sluice.StateDead} {
		for t, err := range q.All(ctx, state, sluice.WithPayloadsUpTo(-1)) {
			if err != nil {
				return nil, err
			}
			p.add(1)
			if o, ok := occurrenceOf(t); ok {
				found = append(found, o)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b occurrence) int { return a.next.Compare(b.next) })
	return found, nil
}
