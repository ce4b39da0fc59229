package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

// crew is the Workers of a queue that run, by their IDs.
type crew map[string]sluice.WorkerInfo

// crewOf asks for the Workers of a queue, if any of the tasks is with one, or was.
func crewOf(ctx context.Context, q *sluice.Queue, tasks ...sluice.TaskInfo) (crew, error) {
	for _, e := range tasks {
		if e.Worker == "" {
			continue
		}
		workers, err := q.Workers(ctx)
		staff := crew{}
		for _, w := range workers {
			staff[w.ID] = w
		}
		return staff, err
	}
	return nil, nil
}

// processOf names the process that a Worker runs in.
func processOf(w sluice.WorkerInfo) string {
	return show(net.JoinHostPort(w.Host, strconv.Itoa(w.PID)))
}

// holder says who has a leased task, or had it.
func (c crew) holder(e sluice.TaskInfo) string {
	w, found := c[e.Worker]
	switch {
	case e.Worker == "":
		return "a Claim"
	case !found:
		return fmt.Sprintf("a worker that is gone (%s)", show(e.Worker))
	case w.Label == "":
		return processOf(w)
	}
	return show(w.Label) + " at " + processOf(w)
}

// holderJSON is the Worker that has a task, or had it, in JSON.
type holderJSON struct {
	ID    string `json:"id"`
	Lives bool   `json:"lives"` // if not, only its ID is known
	Label string `json:"label,omitempty"`
	Host  string `json:"host,omitempty"`
	PID   int    `json:"pid,omitempty"`
}

func (c crew) holderJSON(e sluice.TaskInfo) *holderJSON {
	if e.Worker == "" {
		return nil
	}
	w, found := c[e.Worker]
	return &holderJSON{e.Worker, found, w.Label, w.Host, w.PID}
}

// workersRow is a queue and its Workers.
type workersRow struct {
	queueRow
	workers []sluice.WorkerInfo
}

// workerJSON is a Worker in JSON.
type workerJSON struct {
	ID          string  `json:"id"`
	Label       string  `json:"label"`
	Host        string  `json:"host"`
	PID         int     `json:"pid"`
	Version     string  `json:"version"`
	Concurrency int     `json:"concurrency"`
	Running     int     `json:"running"`
	Stuck       int     `json:"stuck"`
	Started     *string `json:"started"`
	Seen        *string `json:"seen"`
}

// queueWorkersJSON is a queue's Workers in JSON.
type queueWorkersJSON struct {
	Name       string       `json:"name"`
	NameBase64 string       `json:"name_base64,omitempty"`
	Due        int64        `json:"due"`
	WorkerSeen *string      `json:"worker_seen"` // when a Worker was last seen; null if none was for a day
	Workers    []workerJSON `json:"workers"`
	Error      string       `json:"error,omitempty"`
}

type workersJSON struct {
	Queues   []queueWorkersJSON `json:"queues"`
	Complete bool               `json:"complete"`
}

func (r workersRow) json() queueWorkersJSON {
	q := r.queueRow.json()
	j := queueWorkersJSON{Name: q.Name, NameBase64: q.NameBase64, Due: q.Due, WorkerSeen: q.WorkerSeen, Workers: []workerJSON{}, Error: q.Error}
	for _, w := range r.workers {
		j.Workers = append(j.Workers, workerJSON{w.ID, w.Label, w.Host, w.PID, w.Version, w.Concurrency, w.Running, w.Stuck, report.Time(w.Started), report.Time(w.Seen)})
	}
	return j
}

func (a *app) workersCommand() *cobra.Command {
	return &cobra.Command{
		Use: "workers [QUEUE]", Aliases: []string{"servers"}, SuggestFor: []string{"server"}, Short: "List who works on a queue, or on all queues",
		Long: `List the Workers that run, in all processes: of one queue, or of all that sluice queues finds.

Each sends a heartbeat every 15 seconds (or once in a longer poll interval); one that has died is left out after three times as long. RUNNING is how many handlers it had
when it was last SEEN, STUCK how many of these have gone on beyond their timeout. A Worker of several queues, in a Pool, is
listed for each. Loops of one's own, which call Claim or Pop, and Workers of versions before this one are not listed.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return a.workers(cmd.Context(), args) },
	}
}

func (a *app) workers(ctx context.Context, args []string) error {
	rdb, err := a.connect(ctx)
	if err != nil {
		return err
	}
	var names []string
	var incomplete error
	if len(args) == 1 {
		_, name, err := a.open(ctx, args[0])
		if err != nil {
			return err
		}
		names = []string{name}
	} else {
		names, incomplete = inspect.Queues(ctx, rdb, a.options)
		if incomplete != nil && !errors.Is(incomplete, inspect.ErrIncomplete) {
			return incomplete
		}
	}
	counted, err := a.rows(ctx, rdb, names)
	if err != nil {
		return err
	}
	rows := make([]workersRow, len(counted))
	var all errgroup.Group
	all.SetLimit(atOnce)
	for i, r := range counted {
		rows[i].queueRow = r
		if r.stats.Workers == 0 { // or it cannot be read
			continue
		}
		// It ends with its reply; Wait waits for it.
		all.Go(func() error {
			q, err := inspect.Open(rdb, r.name, a.options)
			if err == nil {
				rows[i].workers, err = q.Workers(ctx)
			}
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	if err := a.printWorkers(rows, incomplete == nil, a.now(ctx)); err != nil {
		return err
	}
	return incomplete
}

// printWorkers prints the Workers of queues, and which queues have none.
func (a *app) printWorkers(rows []workersRow, complete bool, now time.Time) error {
	if a.json {
		j := workersJSON{Queues: []queueWorkersJSON{}, Complete: complete}
		for _, r := range rows {
			j.Queues = append(j.Queues, r.json())
		}
		return report.Print(a.out, j)
	}
	var seats []seat
	var idle strings.Builder
	for _, r := range rows {
		for _, w := range r.workers {
			seats = append(seats, seat{r.name, w})
		}
		if len(r.workers) == 0 {
			_, _ = fmt.Fprintf(&idle, "%s: %s\n", show(r.name), r.noWorker(now))
		}
	}
	if len(rows) == 0 {
		return a.printQueues(nil, complete, nil) // says that there is no queue
	}
	if len(seats) > 0 {
		_, _ = fmt.Fprintln(a.out, tableWithin(a.width(), seatColumns(now), seats))
	}
	if idle.Len() > 0 {
		_, _ = fmt.Fprint(a.out, idle.String()+"Loops of one's own, with Claim or Pop, are not listed.\n")
	}
	return nil
}

// seat is a Worker of a queue.
type seat struct {
	queue string
	sluice.WorkerInfo
}

// seatColumns are what a table shows of Workers.
func seatColumns(now time.Time) []column[seat] {
	return []column[seat]{
		{"queue", false, func(s seat) any { return show(s.queue) }},
		{"id", false, func(s seat) any { return show(s.ID) }},
		{"label", false, func(s seat) any { return show(cmp.Or(s.Label, "-")) }},
		{"host:pid", false, func(s seat) any { return processOf(s.WorkerInfo) }},
		{"version", false, func(s seat) any { return show(cmp.Or(s.Version, "-")) }},
		{"concurrency", true, func(s seat) any { return s.Concurrency }},
		{"running", true, func(s seat) any { return s.Running }},
		{"stuck", true, func(s seat) any { return s.Stuck }},
		{"since", false, func(s seat) any { return moment(s.Started) }},
		{"seen", false, func(s seat) any { return spanSince(s.Seen, now) + " ago" }},
	}
}

// noWorker says that a queue has no Worker, since when, and what waits for one.
func (r workersRow) noWorker(now time.Time) string {
	if r.err != nil {
		return r.notes(now)
	}
	text := "no Worker is running, and none has in the last 24 hours"
	if !r.stats.WorkerSeen.IsZero() {
		text = "no Worker is running; the last one was seen " + ago(r.stats.WorkerSeen, now)
	}
	return fmt.Sprintf("%s (%s)", text, statsText(r.stats))
}
