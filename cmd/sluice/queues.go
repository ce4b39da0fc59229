package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

// queueRow is a queue and its counts.
type queueRow struct {
	inspect.QueueInfo
	stats sluice.Stats
	err   error // why there are no counts
}

// queueJSON is a queue in JSON.
type queueJSON struct {
	Name             string      `json:"name"`
	NameBase64       string      `json:"name_base64,omitempty"`
	Shards           int         `json:"shards"`
	Due              int64       `json:"due"`
	Scheduled        int64       `json:"scheduled"`
	Leased           int64       `json:"leased"`
	Dead             int64       `json:"dead"`
	Dropped          int64       `json:"dropped"`
	OldestDueSeconds float64     `json:"oldest_due_seconds"`
	NextDue          *string     `json:"next_due"`
	Paused           bool        `json:"paused"`
	PausedUntil      *string     `json:"paused_until"`
	Limits           *limitsJSON `json:"limits"`
	Waiting          int         `json:"waiting"` // how many clients wait for tasks
	Error            string      `json:"error,omitempty"`
}

type queuesJSON struct {
	Queues   []queueJSON `json:"queues"`
	Complete bool        `json:"complete"`
}

func (r queueRow) json() queueJSON {
	j := queueJSON{
		Shards: r.Shards, Due: r.stats.Due, Scheduled: r.stats.Scheduled, Leased: r.stats.Leased, Dead: r.stats.Dead, Dropped: r.stats.Dropped,
		OldestDueSeconds: r.stats.OldestDue.Seconds(), NextDue: jsonTime(r.stats.NextDue), Paused: r.stats.Paused, PausedUntil: jsonTime(r.stats.PausedUntil),
		Limits: toLimitsJSON(r.stats), Waiting: r.stats.Waiting,
	}
	j.Name, j.NameBase64 = bytesField(r.Name)
	if r.err != nil {
		j.Error = escape(r.err.Error())
	}
	return j
}

// atOnce is how many queues are asked, or tasks changed, at the same time.
const atOnce = 16

// rows counts the tasks of queues. A queue whose counts cannot be had says so itself: one that is damaged
// does not hide the others. The error is that of a server that serves none.
func (a *app) rows(ctx context.Context, rdb redis.UniversalClient, infos []inspect.QueueInfo) ([]queueRow, error) {
	rows := make([]queueRow, len(infos))
	var mu sync.Mutex
	var first error
	failed := 0
	var all errgroup.Group
	all.SetLimit(atOnce)
	for i, info := range infos {
		all.Go(func() error {
			rows[i].QueueInfo = info
			q, err := inspect.OpenAs(rdb, info, a.options)
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

func (a *app) queuesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "queues", Short: "List the queues that exist, with their counts",
		Long: `List the queues that exist, with their counts.

They are found by SCAN, a thousand keys at a time, on each primary. A queue that is empty leaves no key
(unless it has several shards), so that it is not listed. LEASED are tasks that workers have, or had and did not
finish before their leases ended. OLDEST DUE is for how long the first due task waits. WAITING is how many clients
wait for tasks: those of workers that have room, once for each shard. Behind them stand a pause and the limits of a queue:
at its limit, as many tasks are leased as may be. "5 dropped" are dead letters that were dropped because of WithDeadLimit or WithDeadAge since there is the queue.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			rdb, err := a.connect()
			if err != nil {
				return err
			}
			infos, incomplete := inspect.Queues(cmd.Context(), rdb, a.options)
			if incomplete != nil && !errors.Is(incomplete, inspect.ErrIncomplete) {
				return incomplete
			}
			rows, err := a.rows(cmd.Context(), rdb, infos)
			if err != nil {
				return err
			}
			if err := a.printQueues(rows, incomplete == nil); err != nil {
				return err
			}
			return incomplete
		},
	}
}

func (a *app) printQueues(rows []queueRow, complete bool) error {
	if a.json {
		j := queuesJSON{Queues: []queueJSON{}, Complete: complete}
		for _, r := range rows {
			j.Queues = append(j.Queues, r.json())
		}
		return printJSON(a.out, j)
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintf(a.errOut, "No queue has a key that begins with %s at %s. A queue that is empty has none.\n", show(a.queuePrefix), a.where())
		return err
	}
	t := a.newTable("name", "shards", "due", "scheduled", "leased", "dead", "oldest due", "next due", "waiting", "")
	rightAligned(t, 2, 3, 4, 5, 6, 7, 9)
	for _, r := range rows {
		t.AppendRow(r.cells(time.Now()))
	}
	t.Render()
	return nil
}

// cells are what a table shows of a queue.
func (r queueRow) cells(now time.Time) []any {
	if r.err != nil {
		return []any{show(r.Name), r.Shards, "", "", "", "", "", "", "", "ERROR " + short(escape(r.err.Error()), 90)}
	}
	oldest, next := "-", "-"
	if r.stats.Due > 0 {
		oldest = span(r.stats.OldestDue)
	}
	if !r.stats.NextDue.IsZero() {
		next = "in " + span(max(0, r.stats.NextDue.Sub(now)))
	}
	return []any{show(r.Name), r.Shards, count(r.stats.Due), count(r.stats.Scheduled), count(r.stats.Leased), count(r.stats.Dead), oldest, next, r.stats.Waiting, r.notes(now)}
}

// notes are what stands behind a queue's figures: its pause, its limits, and what was dropped.
func (r queueRow) notes(now time.Time) string {
	var notes []string
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
	if r.stats.Dropped > 0 {
		notes = append(notes, count(r.stats.Dropped)+" dropped")
	}
	return strings.Join(notes, "; ")
}

// open returns the named queue. If it has no keys it says so: the name may be wrong.
func (a *app) open(ctx context.Context, argument string) (*sluice.Queue, string, error) {
	q, info, err := a.openInfo(ctx, argument)
	return q, info.Name, err
}

// openInfo is open, and returns what was found.
func (a *app) openInfo(ctx context.Context, argument string) (*sluice.Queue, inspect.QueueInfo, error) {
	name, err := a.argument(argument)
	if err != nil {
		return nil, inspect.QueueInfo{}, err
	}
	rdb, err := a.connect()
	if err != nil {
		return nil, inspect.QueueInfo{}, err
	}
	info, exists, err := inspect.Find(ctx, rdb, name, a.options)
	if err != nil {
		return nil, info, err
	}
	if !exists {
		_, _ = fmt.Fprintf(a.errOut, "Note: there is no key of a queue %s: it is empty, or this is not its name (sluice queues lists those that exist).\n", show(name))
	}
	q, err := inspect.OpenAs(rdb, info, a.options)
	return q, info, err
}

// argument returns a name or an ID of the command line.
func (a *app) argument(text string) (string, error) {
	if !a.quoted {
		return text, nil
	}
	return unshow(text)
}
