package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

// queueRow is a queue and its counts.
type queueRow struct {
	name  string
	stats sluice.Stats
	rates *rates // since the look before, if there was one
	stuck int64  // how many handlers are, as far as that was asked
	err   error  // why there are no counts
}

func (r queueRow) json() report.Queue {
	j := report.Of(r.name, r.stats, r.err)
	if r.rates != nil {
		j.Rates = r.rates
	}
	return j
}

// atOnce is how many queues are asked, or tasks changed, at the same time.
const atOnce = 16

// rows counts the tasks of queues. A queue whose counts cannot be had says so itself: one that is
// damaged does not hide the others. The error is that of a server that serves none.
func (a *app) rows(
	ctx context.Context, rdb redis.UniversalClient, names []string,
) ([]queueRow, error) {
	rows := make([]queueRow, len(names))
	var mu sync.Mutex
	var first error
	failed := 0
	var all errgroup.Group
	all.SetLimit(atOnce)
	for i, name := range names {
		all.Go(func() error {
			rows[i].name = name
			q, err := inspect.Open(rdb, name, a.options)
			if err == nil {
				rows[i].stats, err = q.Stats(ctx)
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				rows[i].err, first, failed = err, err, failed+1
			}
			return nil
		})
	}
	_ = all.Wait()
	if failed > 0 && (failed == len(rows) || ctx.Err() != nil) {
		return nil, first
	}
	return rows, nil
}

// stuckHandlers returns how many handlers are stuck, by queue: it asks where Workers run. Where
// they cannot be read none is known.
func (a *app) stuckHandlers(ctx context.Context, rdb redis.UniversalClient, rows []queueRow) map[string]int64 {
	stuck := map[string]int64{}
	var mu sync.Mutex // guards stuck
	var all errgroup.Group
	all.SetLimit(atOnce)
	for _, r := range rows {
		if r.stats.Workers == 0 {
			continue
		}
		all.Go(func() error { // it ends with its reply; Wait waits for it
			q, err := inspect.Open(rdb, r.name, a.options)
			if err != nil {
				return nil //nolint:nilerr // the row says so
			}
			workers, _ := q.Workers(ctx)
			mu.Lock()
			defer mu.Unlock()
			for _, worker := range workers {
				stuck[r.name] += int64(worker.Stuck)
			}
			return nil
		})
	}
	_ = all.Wait()
	return stuck
}

func (a *app) queuesCommand() *cobra.Command {
	var wide, worst bool
	c := &cobra.Command{
		Use: "queues [NAME...]", Aliases: []string{"stats"}, SuggestFor: []string{"queue"}, Short: "List the queues that exist, or those that are named, with their counts",
		Long: `List the queues that exist, or those that are named, with their counts.

They are found by SCAN, a thousand keys at a time, on each primary. A queue that is empty leaves no
key a day after the last task or worker, so that it is not listed. LEASED are tasks that workers
have, or had and did not finish before their leases ended. LATENESS is for how long the first due
task waits. WORKERS is how many Workers run: sluice workers lists them. One that has died counts until it
has been silent for 45 seconds. WAITING is how many clients wait for tasks: those of workers that
have room.

Behind them stand signs: STUCK, if handlers run on after their timeout and grace; NO WORKER, if
tasks are due and none runs (loops of one's own, which call Claim or Pop, do not count); NO ROOM, if
tasks are due and no worker that runs has room for another one; LATE, if the first due task waits for more than a minute. Behind that
stand a pause and the limits of a queue: at its limit, as many tasks are leased as may be. "5
trimmed" are dead letters that were removed because of WithDeadLimit or WithDeadAge, "5 done"
finished tasks that are remembered because of WithRetention: ls --state done lists them.

On a terminal the longest names are cut in their middle, so that the table fits; --wide and a pipe
have them whole.

--wide shows what became of tasks, too: how many were FINISHED (by a worker or Dequeue, discarded,
or taken by Pop), RETRIED (failed, and are to be tried again), BURIED, or LOST: leases that ran out.
These counts begin at 0 after a day without work. Rates are in sluice top.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			rdb, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			names, incomplete := a.namedOrFound(cmd.Context(), rdb, args)
			if incomplete != nil && !errors.Is(incomplete, inspect.ErrIncomplete) {
				return incomplete
			}
			rows, err := a.rows(cmd.Context(), rdb, names)
			if err != nil {
				return err
			}
			stuck := a.stuckHandlers(cmd.Context(), rdb, rows)
			for i, r := range rows {
				rows[i].stuck = stuck[r.name]
			}
			if worst {
				slices.SortStableFunc(rows, byTrouble)
			}
			a.whole = wide
			if err := a.printQueues(rows, incomplete == nil, queueColumns(time.Now(), wide, false)); err != nil {
				return err
			}
			return incomplete
		},
	}
	c.Flags().BoolVar(&wide, "wide", false, "show what became of tasks, too")
	c.Flags().BoolVar(&worst, "worst", false, "those with the worst signs first, then those whose first due task waits longest")
	return c
}

func (a *app) printQueues(rows []queueRow, complete bool, columns []column[queueRow]) error {
	if a.json {
		j := report.Queues{Queues: []report.Queue{}, Complete: complete}
		for _, r := range rows {
			j.Queues = append(j.Queues, r.json())
		}
		return report.Print(a.out, j)
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintf(a.errOut, "No queue has a key that begins with %s at %s. A queue that is empty has none a day later.\n", show(a.queuePrefix), a.where())
		return err
	}
	_, err := fmt.Fprintln(a.out, tableWithin(a.width(), columns, rows))
	return err
}

// queueColumns are what a table shows of queues: with their counts, if it is wide, or with rates,
// for top.
func queueColumns(now time.Time, wide, rated bool) []column[queueRow] {
	all := []column[queueRow]{{"name", false, func(r queueRow) any { return show(r.name) }}}
	add := func(name string, cell func(s sluice.Stats) any) {
		all = append(all, column[queueRow]{name, true, func(r queueRow) any {
			if r.err != nil {
				return ""
			}
			return cell(r.stats)
		}})
	}
	add("due", func(s sluice.Stats) any { return inspect.Count(s.Due) })
	if rated {
		all = append(all, rateColumns...)
	}
	add("scheduled", func(s sluice.Stats) any { return inspect.Count(s.Scheduled) })
	add("leased", func(s sluice.Stats) any { return inspect.Count(s.Leased) })
	add("dead", func(s sluice.Stats) any { return inspect.Count(s.Dead) })
	if wide {
		add("finished", func(s sluice.Stats) any { return inspect.Count(s.Finished) })
		add("discarded", func(s sluice.Stats) any { return inspect.Count(s.Discarded) })
		add("retried", func(s sluice.Stats) any { return inspect.Count(s.Retried) })
		add("buried", func(s sluice.Stats) any { return inspect.Count(s.Buried) })
		add("lost", func(s sluice.Stats) any { return inspect.Count(s.Lost) })
	}
	add("lateness", func(s sluice.Stats) any {
		if s.Due == 0 {
			return "-"
		}
		return span(s.Lateness)
	})
	add("next due", func(s sluice.Stats) any {
		if s.NextDue.IsZero() {
			return "-"
		}
		return "in " + span(max(0, s.NextDue.Sub(now)))
	})
	add("workers", func(s sluice.Stats) any { return inspect.Count(int64(s.Workers)) })
	add("waiting", func(s sluice.Stats) any { return inspect.Count(int64(s.Waiting)) })
	return append(all, column[queueRow]{"", false, func(r queueRow) any { return r.notes(now) }})
}

// notes are what stands behind a queue's figures: what is wrong, its pause, its limits, what was
// trimmed, and what is done.
func (r queueRow) notes(now time.Time) string {
	if r.err != nil {
		return "ERROR " + short(report.Escape(r.err.Error()), 90)
	}
	var notes []string
	signs := inspect.Signs(r.stats, r.stuck)
	for _, sign := range []inspect.Sign{inspect.SignStuck, inspect.SignNoRoom, inspect.SignLate} {
		if slices.Contains(signs, sign) {
			note := strings.ToUpper(sign.String())
			if sign == inspect.SignStuck {
				note = inspect.Count(r.stuck) + " " + note
			}
			notes = append(notes, note)
		}
	}
	if slices.Contains(signs, inspect.SignNoWorker) {
		notes = append(notes, "NO WORKER")
	}
	if slices.Contains(signs, inspect.SignWorkersGone) {
		notes = append(notes, "NO WORKER for "+span(max(0, now.Sub(r.stats.WorkerSeen))))
	}
	if r.stats.Paused {
		pause := "PAUSED"
		if !r.stats.PausedUntil.IsZero() {
			pause += " for " + span(max(0, r.stats.PausedUntil.Sub(now)))
		}
		notes = append(notes, pause)
	}
	if limits := inspect.LimitsNote(r.stats); limits != "" {
		notes = append(notes, limits)
	}
	if r.stats.Trimmed > 0 {
		notes = append(notes, inspect.Count(r.stats.Trimmed)+" trimmed")
	}
	if r.stats.GroupWaiting > 0 {
		notes = append(notes, inspect.Count(r.stats.GroupWaiting)+" wait in groups")
	}
	if r.stats.Done > 0 {
		notes = append(notes, inspect.Count(r.stats.Done)+" done")
	}
	return strings.Join(notes, "; ")
}

// open returns the queue of an argument, and its name. If it has no keys it says so: the name may
// be wrong.
func (a *app) open(ctx context.Context, argument string) (*sluice.Queue, string, error) {
	name, err := a.argument(argument)
	if err != nil {
		return nil, "", err
	}
	rdb, err := a.connect(ctx)
	if err != nil {
		return nil, "", err
	}
	exists, err := inspect.Exists(ctx, rdb, name, a.options)
	if err != nil {
		return nil, name, err
	}
	if !exists {
		_, _ = fmt.Fprintf(a.errOut, "Note: there is no key of a queue %s: it is empty, or this is not its name (sluice queues lists those that exist).\n", show(name))
	}
	q, err := inspect.Open(rdb, name, a.options)
	return q, name, err
}

// argument returns a name or an ID of the command line.
func (a *app) argument(text string) (string, error) {
	if !a.quoted {
		return text, nil
	}
	return unshow(text)
}

// namedOrFound returns the names of queues that are given, or of all that exist. The error may be
// inspect.ErrIncomplete beside names.
func (a *app) namedOrFound(ctx context.Context, rdb redis.UniversalClient, args []string) (names []string, err error) {
	for _, arg := range args {
		_, name, err := a.open(ctx, arg)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	if len(args) > 0 {
		return names, nil
	}
	return inspect.Queues(ctx, rdb, a.options)
}
