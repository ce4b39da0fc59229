package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

func (a *app) cancelCommand() *cobra.Command {
	act := action{name: "cancel", done: "cancelled", many: func(ctx context.Context, q *sluice.Queue, _ sluice.State, ids ...string) (map[outcome]int, error) {
		states, err := q.CancelBatch(ctx, ids...)
		became := map[outcome]int{}
		for _, state := range states {
			if state != sluice.StateAbsent {
				became[outcome("was "+state.String())]++
			}
		}
		return became, err
	}}
	return a.changeCommand(&cobra.Command{
		Aliases: []string{"delete"}, Short: "Remove tasks, whatever their state",
		Long: `Remove tasks, whatever their state. Where a task was leased, a handler may be at work on it at this moment: its context
ends, and what it has done is not undone. One that is done is forgotten, with its result: its ID can be enqueued again, also with
DuplicatesOnce.`,
		Example: `  sluice cancel orders order-17 order-18
  sluice cancel orders --all --state scheduled --prefix test-`,
	}, act, &selection{})
}

// counting is for what tells how many tasks it has changed.
func counting(change func(q *sluice.Queue, ctx context.Context, ids ...string) (int, error)) func(ctx context.Context, q *sluice.Queue, of sluice.State, ids ...string) (map[outcome]int, error) {
	return func(ctx context.Context, q *sluice.Queue, _ sluice.State, ids ...string) (map[outcome]int, error) {
		n, err := change(q, ctx, ids...)
		if n == 0 {
			return nil, err
		}
		return map[outcome]int{outcomeDone: n}, err
	}
}

// takenSince reports whether a worker has taken a task, as a look just before a change shows, that was
// chosen in another state: a change would have its handler's work done twice.
func takenSince(was, is sluice.State) bool {
	return is == sluice.StateLeased && was != sluice.StateLeased && was != sluice.StateAbsent
}

// rescheduled makes a task due after delay.
func rescheduled(delay func() time.Duration) func(ctx context.Context, q *sluice.Queue, t sluice.TaskInfo) (outcome, error) {
	return func(ctx context.Context, q *sluice.Queue, t sluice.TaskInfo) (outcome, error) {
		if t.State != sluice.StateAbsent {
			now, err := q.Get(ctx, t.ID, sluice.WithoutPayloads())
			if errors.Is(err, sluice.ErrNotFound) || takenSince(t.State, now.State) {
				return outcomeMissing, nil
			}
			if err != nil {
				return outcomeMissing, err
			}
		}
		ok, err := q.Reschedule(ctx, t.ID, max(0, delay()))
		if err != nil || !ok {
			return outcomeMissing, err
		}
		return outcomeDone, nil
	}
}

func (a *app) runCommand() *cobra.Command {
	act := action{
		name: "run", done: "due now", states: []sluice.State{sluice.StateScheduled, sluice.StateDue, sluice.StateLeased},
		one: rescheduled(func() time.Duration { return 0 }),
	}
	return a.changeCommand(&cobra.Command{
		Short: "Make tasks due now",
		Long: `Make tasks due now, so that the next free worker takes them. One that is leased is not taken from its holder: it
runs again once that has finished; with --all, what a worker has taken since the choice is left alone. For dead letters there is revive.`,
		Example: `  sluice run orders order-17`,
	}, act, &selection{})
}

func (a *app) delayCommand() *cobra.Command {
	var wait time.Duration
	var start time.Time
	act := action{
		name: "delay", done: "delayed", states: []sluice.State{sluice.StateDue, sluice.StateScheduled, sluice.StateLeased},
		// From the command's start on, so that all are due at one time, however long it takes.
		one: rescheduled(func() time.Duration { return time.Until(start.Add(wait)) }),
	}
	c := a.changeCommand(&cobra.Command{
		Short: "Make tasks due later",
		Long: `Make tasks due at a time from now. One that is leased is not taken from its holder: it runs again at that
time. With --all, what a worker has taken since the choice is left alone.`,
		Example: `  sluice delay orders order-17 --for 10m
  sluice delay orders --all --state due --for 1h`,
	}, act, &selection{})
	c.Flags().DurationVar(&wait, "for", 0, "how long from now they are due: 90s, 10m, 24h")
	act2 := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if wait <= 0 {
			return usagef("--for says how long from now they are due: 90s, 10m, 24h")
		}
		start = time.Now()
		return act2(cmd, args)
	}
	return c
}

func (a *app) buryCommand() *cobra.Command {
	var reason string
	act := action{name: "bury", done: "buried", states: []sluice.State{sluice.StateDue, sluice.StateScheduled, sluice.StateLeased}, many: func(ctx context.Context, q *sluice.Queue, of sluice.State, ids ...string) (map[outcome]int, error) {
		return buryAll(ctx, q, of, ids, reason)
	}}
	c := a.changeCommand(&cobra.Command{
		Aliases: []string{"archive"}, Short: "Put tasks among the dead letters",
		Long: `Put tasks among the dead letters, where no worker takes them, with a reason. A task that is leased is taken from its
holder, which learns of it when it next reports or extends its lease; with --all, what a worker has taken since the choice is left alone.`,
		Example: `  sluice bury orders order-17 --why "poison: crashes the worker, see INC-42"`,
	}, act, &selection{})
	c.Flags().StringVar(&reason, "why", "buried by an operator", "the reason to keep with them")
	return c
}

// buryAtOnce is how many tasks are buried by a script: of those before one that fails it is known what became of them.
const buryAtOnce = 250

// buryAll reads the tasks' receipts and uses them. Those that have moved meanwhile (they were
// claimed, or their leases were extended) are tried again.
func buryAll(ctx context.Context, q *sluice.Queue, of sluice.State, ids []string, reason string) (map[outcome]int, error) {
	became := map[outcome]int{}
	for range 5 {
		tasks, err := getAll(ctx, q, ids, sluice.WithoutPayloads())
		if err != nil {
			return became, err
		}
		var entries []sluice.Entry
		states := map[string]sluice.State{}
		for _, t := range tasks {
			if t.State != sluice.StateDead && t.State != sluice.StateDone && !takenSince(of, t.State) {
				entries, states[t.ID] = append(entries, inspect.Take(t)), t.State
			}
		}
		ids = nil
		for part := range slices.Chunk(entries, buryAtOnce) {
			err := q.Bury(ctx, reason, part...)
			if err != nil && !errors.Is(err, sluice.ErrStale) {
				return became, err
			}
			stale := staleOf(err, part)
			ids = append(ids, stale...)
			for _, e := range part {
				if !slices.Contains(stale, e.ID) {
					became[outcome("was "+states[e.ID].String())]++
				}
			}
		}
		if len(ids) == 0 {
			return became, nil
		}
	}
	return became, fmt.Errorf("%s move too fast: they were claimed or extended each time; try again, or pause the queue first", inspect.Plural(int64(len(ids)), "task"))
}

// staleOf returns the IDs whose receipts were stale.
func staleOf(err error, entries []sluice.Entry) []string {
	var stale *sluice.StaleError
	switch {
	case errors.As(err, &stale):
		return stale.IDs
	case err != nil:
		return []string{entries[0].ID} // it was one task
	}
	return nil
}

func (a *app) reviveCommand() *cobra.Command {
	return a.changeCommand(&cobra.Command{
		Aliases: []string{"retry"}, Short: "Put dead letters back: due now, with no attempts",
		Example: `  sluice revive orders order-17
  sluice revive orders --all --reason "connection refused" --dry-run
  sluice revive orders --all --reason timeout --since 1h --rate 50`,
	}, action{
		name: "revive", done: "revived", states: []sluice.State{sluice.StateDead},
		many: counting((*sluice.Queue).Revive),
	}, &selection{})
}

func (a *app) dropCommand() *cobra.Command {
	return a.changeCommand(&cobra.Command{
		Short: "Remove dead letters for good",
		Long: `Remove dead letters for good. A task that is in the queue again, because it was revived or enqueued anew, is
left alone; cancel removes those.`,
		Example: `  sluice drop orders --all --reason "no such customer"`,
	}, action{name: "drop", done: "dropped", states: []sluice.State{sluice.StateDead}, many: counting((*sluice.Queue).Drop)}, &selection{})
}
