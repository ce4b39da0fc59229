package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

const (
	// searchEvery is how often top looks for queues that are new. Between, it asks those that it
	// knows.
	searchEvery = 10 * time.Second
	// oldAfter is how long behind its time a look may be until its figures say so.
	oldAfter = 3 * time.Second
	// workersEvery is how often top asks the Workers of each queue whether handlers are stuck: they
	// say it each 15 seconds.
	workersEvery = 10 * time.Second
)

func (a *app) topCommand() *cobra.Command {
	var interval time.Duration
	var frames int
	c := &cobra.Command{
		Use: "top", Aliases: []string{"dash"}, Short: "Watch the queues, and how many tasks end in a second",
		Long: `Watch the queues, those first that need an operator. Keys: arrows choose a queue, enter shows its states, Workers and the
reasons of its dead letters, esc goes back; s sorts by the next column, q quits. The columns are those of sluice queues, and behind them stand signs:
STUCK (handlers that go on beyond their timeout), NO WORKER, NO ROOM (tasks are due, and no Worker has room), LATE (the first due task waits for more
than a minute). NO_COLOR in the environment is for a terminal without colours.

DUE/S is by how many a second the due tasks have grown since the look before. FINISHED/S, RETRIED/S, BURIED/S and LOST/S are how many tasks a second,
in all processes, were finished, failed and are to be tried again, were put among the dead letters, or were lost: their leases ran out.

Each interval costs one small script for each queue, and every ten seconds one more for each that has Workers; every ten seconds,
or twenty times as long as that takes, the queues are searched for, by SCAN.
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
	last     frame            // that was seen
	stuck    map[string]int64 // how many handlers are, by queue
	nextAsk  time.Time        // when Workers are asked again
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
	w.askWorkers(ctx, rows)
	for i, r := range rows {
		rows[i].stuck = w.stuck[r.name]
	}
	return w.rated(frame{time.Now(), rows, w.complete, nil})
}

// askWorkers asks for stuck handlers, if it is time to.
func (w *watch) askWorkers(ctx context.Context, rows []queueRow) {
	now := time.Now()
	if now.Before(w.nextAsk) {
		return
	}
	w.stuck, w.nextAsk = w.a.stuckHandlers(ctx, w.rdb, rows), now.Add(workersEvery)
}

// pauseBehind returns for how long no search follows one that took so long.
func pauseBehind(took time.Duration) time.Duration {
	return max(searchEvery, inspect.PauseBehind(took))
}

// print prints a table for each interval, the worst queues first.
func (w *watch) print(ctx context.Context, interval time.Duration, frames int) error {
	for i := 1; ; i++ {
		f := w.look(ctx)
		if f.err != nil {
			return f.err
		}
		worst := slices.SortedStableFunc(slices.Values(f.rows), byTrouble)
		if err := w.a.printQueues(worst, f.complete, queueColumns(f.at, false, true)); err != nil {
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
