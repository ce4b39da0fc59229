package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

// outcomeKept is that of a task whose ID the other queue has.
const outcomeKept outcome = "kept: the other queue has that ID"

// outcomeChanged is that of a task that was claimed, or put off, or has died, while it was moved.
const outcomeChanged outcome = "kept: it has changed meanwhile"

// outcomeHolds is that of a task that holds units of its queue's stock.
const outcomeHolds outcome = "kept: it holds units of this queue's stock"

func (a *app) moveCommand() *cobra.Command {
	var to string
	var target *sluice.Queue
	act := action{name: "move", done: "moved", states: []sluice.State{sluice.StateDead, sluice.StateDue, sluice.StateScheduled}, many: func(ctx context.Context, q *sluice.Queue, _ sluice.State, ids ...string) (map[outcome]int, error) {
		return move(ctx, q, target, ids)
	}}
	var told sync.Once
	act.dry = func(ctx context.Context, q *sluice.Queue, ids ...string) (map[outcome]int, error) {
		became, err := dryMove(ctx, q, target, ids)
		if notPaused := (notPausedError{}); errors.As(err, &notPaused) {
			told.Do(func() { _, _ = fmt.Fprintf(a.errOut, "sluice: now it would move dead letters alone: %v\n", err) })
			err = nil
		}
		return became, err
	}
	c := a.changeCommand(&cobra.Command{
		Short: "Move dead letters, or tasks of a paused queue, to another queue",
		Long: `Move dead letters to another queue, or tasks that are due or scheduled: as they are, with attempts, errors and reasons. A dead letter is one
there, too: revive it there, or leave it where no worker is. What is due or scheduled is moved only while its queue is paused:
else a worker could have begun it here, and another one there. Each task is in the other queue before it leaves its own, so that
none is lost: a move that was interrupted is repeated, and takes away what it has left in both. What has changed meanwhile stays. Resume
neither queue before the end: up to 25 tasks could be handed out in both.

A task whose ID the other queue has stays, and so does one that holds units: the stock is its queue's.`,
		Example: `  sluice move orders --to orders-parked --all --reason "no such customer"
  sluice move orders --to orders-eu --all --state due,scheduled --prefix eu-`,
	}, act, &selection{})
	c.Flags().StringVar(&to, "to", "", "the other queue, which may be new")
	run := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		name, err := a.argument(to)
		if err != nil {
			return err
		}
		if name == "" {
			return usagef("--to names the queue to which they are moved")
		}
		rdb, err := a.connect(ctx)
		if err != nil {
			return err
		}
		if target, err = inspect.Open(rdb, name, a.options); err != nil {
			return err
		}
		return run(cmd, args)
	}
	return c
}

// move moves tasks, and returns what became of how many.
func move(ctx context.Context, from, to *sluice.Queue, ids []string) (became map[outcome]int, err error) {
	if from.Name() == to.Name() {
		return nil, usagef("--to is the queue itself")
	}
	became = map[outcome]int{}
	for len(ids) > 0 {
		part := ids[:min(moveAtOnce, len(ids))]
		ids = ids[len(part):]
		if err := movePart(ctx, from, to, part, became); err != nil {
			return became, err
		}
	}
	return became, nil
}

// dryMove returns what would become of how many tasks, and the error that would keep them from it.
func dryMove(ctx context.Context, from, to *sluice.Queue, ids []string) (map[outcome]int, error) {
	if from.Name() == to.Name() {
		return nil, usagef("--to is the queue itself")
	}
	tasks, err := getAll(ctx, from, ids, sluice.WithoutPayloads())
	if err != nil {
		return nil, err
	}
	movable, holding := movableOf(tasks)
	there, err := getAll(ctx, to, idsOf(movable), sluice.WithoutPayloads())
	if err != nil {
		return nil, err
	}
	kept := len(there)
	for part := range slices.Chunk(idsOf(there), moveAtOnce) { // a move that was interrupted has left some in both
		again, err := getAll(ctx, from, part)
		if err != nil {
			return nil, err
		}
		again, _ = movableOf(again)
		same, err := asItIs(ctx, to, again...)
		if err != nil {
			return nil, err
		}
		kept -= len(same)
	}
	return map[outcome]int{outcomeHolds: holding, outcomeKept: kept, outcomeDone: len(movable) - kept}, mayMove(ctx, from, movable)
}

// movableOf returns those of some tasks that can be moved, and how many hold units of their queue.
func movableOf(tasks []sluice.TaskInfo) (movable []sluice.TaskInfo, holding int) {
	for _, t := range tasks {
		switch t.State {
		case sluice.StateDead, sluice.StateDue, sluice.StateScheduled:
			if t.Take.Units > 0 {
				holding++
				continue
			}
			t.Due, t.DiedAt = inRange(t.Due), inRange(t.DiedAt)
			movable = append(movable, t)
		}
	}
	return movable, holding
}

// idsOf returns the IDs of tasks.
func idsOf(tasks []sluice.TaskInfo) []string {
	ids := make([]string, len(tasks))
	for i, t := range tasks {
		ids[i] = t.ID
	}
	return ids
}

// moveAtOnce is how many tasks are moved in a step: they are in memory with their payloads, and the shorter it
// is between two looks at the pause, the better.
const moveAtOnce = 25

func movePart(ctx context.Context, from, to *sluice.Queue, ids []string, became map[outcome]int) error {
	tasks, err := getAll(ctx, from, ids)
	if err != nil {
		return err
	}
	movable, holding := movableOf(tasks)
	became[outcomeHolds] += holding
	if len(movable) == 0 {
		return nil
	}
	if err := mayMove(ctx, from, movable); err != nil {
		return err
	}
	outcomes, err := to.Restore(ctx, movable...)
	var restored []sluice.TaskInfo
	for i, o := range outcomes {
		isThere := o == sluice.OutcomeAdded
		if o == sluice.OutcomeKept { // by a move that was interrupted, perhaps
			same, failed := asItIs(ctx, to, movable[i])
			if failed != nil {
				return partly(outcomes, errors.Join(err, failed))
			}
			isThere = len(same) == 1
		}
		if isThere {
			restored = append(restored, movable[i])
		} else if o != 0 {
			became[outcomeKept]++
		}
	}
	return partly(outcomes, errors.Join(err, leave(ctx, from, to, restored, became)))
}

// partly returns an error as a partError if tasks were added before.
func partly(outcomes []sluice.Outcome, err error) error {
	if err != nil && slices.Contains(outcomes, sluice.OutcomeAdded) {
		return partError{err}
	}
	return err
}

// asItIs returns, of some tasks, those that a queue has just so, as it has them.
func asItIs(ctx context.Context, q *sluice.Queue, tasks ...sluice.TaskInfo) (same []sluice.TaskInfo, err error) {
	for _, t := range tasks {
		other, err := q.Get(ctx, t.ID)
		if err == nil && isSame(t, other) {
			same = append(same, other)
		} else if err != nil && !errors.Is(err, sluice.ErrNotFound) {
			return same, err
		}
	}
	return same, nil
}

// isSame reports whether a task is another one as Restore has put it into its queue: what was
// scheduled may be due by now, and what waits in its group has no attempts.
func isSame(t, restored sluice.TaskInfo) bool {
	a, b := lineOf("", t), lineOf("", restored)
	if t.State != sluice.StateDead && restored.State != sluice.StateDead && restored.State != sluice.StateLeased {
		a.State = b.State
	}
	if restored.State == sluice.StateWaiting {
		a.Attempt, a.Reason, a.Failed = b.Attempt, b.Reason, b.Failed
	}
	return reflect.DeepEqual(a, b)
}

// mayMove refuses to move what a worker may take meanwhile.
func mayMove(ctx context.Context, q *sluice.Queue, tasks []sluice.TaskInfo) error {
	s, err := q.Stats(ctx)
	if err != nil || s.Paused && s.PausedUntil.IsZero() { // a pause with an end may end meanwhile
		return err
	}
	for _, t := range tasks {
		if t.State != sluice.StateDead {
			return notPausedError{q.Name()}
		}
	}
	return nil
}

// leave takes tasks out of their queue, that are in the other one by now. Those that have changed
// meanwhile stay, and are taken out of the other one again, if they have not changed there.
func leave(ctx context.Context, from, to *sluice.Queue, tasks []sluice.TaskInfo, became map[outcome]int) error {
	states, err := from.CancelUnchanged(ctx, tasks...)
	var changed []sluice.TaskInfo
	for i, s := range states {
		if s == sluice.StateAbsent {
			changed = append(changed, tasks[i])
		}
	}
	became[outcomeDone] += len(states) - len(changed)
	if err != nil {
		return err
	}
	became[outcomeChanged] += len(changed)
	same, err := asItIs(ctx, to, changed...)
	if err == nil {
		_, err = to.CancelUnchanged(ctx, same...)
	}
	return err
}

// getAll returns the tasks with some IDs that are there.
func getAll(ctx context.Context, q *sluice.Queue, ids []string, opts ...sluice.ReadOption) (found []sluice.TaskInfo, err error) {
	tasks := make([]sluice.TaskInfo, len(ids))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(bulkAtOnce)
	for i, id := range ids {
		group.Go(func() error { // it ends with its reply; Wait waits for it
			t, err := q.Get(ctx, id, opts...)
			if errors.Is(err, sluice.ErrNotFound) {
				return nil
			}
			tasks[i] = t
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for _, t := range tasks {
		if t.State != sluice.StateAbsent {
			found = append(found, t)
		}
	}
	return found, nil
}
