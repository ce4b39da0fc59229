package sluicetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-go/sluice"
)

// Prefix returns the same Redis, whose methods look at queues with another prefix: see
// sluice.WithQueuePrefix.
func (r *Redis) Prefix(prefix string) *Redis { return &Redis{server: r.server, prefix: prefix} }

// Due returns the tasks of a queue that are due: all of them, in order, with payloads and headers,
// whether the queue is paused or not. TaskInfo.Reason is the last error of one that has failed.
// Like all that follow it changes nothing.
func (r *Redis) Due(queue string) []sluice.TaskInfo {
	r.t.Helper()
	return r.list(queue, sluice.StateDue)
}

// Scheduled returns the tasks of a queue that are due later, in order: also those that have failed
// and are to be tried again, with their last errors.
func (r *Redis) Scheduled(queue string) []sluice.TaskInfo {
	r.t.Helper()
	return r.list(queue, sluice.StateScheduled)
}

// Leased returns the tasks of a queue that a handler or a caller of Claim has, in the order of
// their leases' ends, with who has them and since when.
func (r *Redis) Leased(queue string) []sluice.TaskInfo {
	r.t.Helper()
	return r.list(queue, sluice.StateLeased)
}

// Dead returns the dead letters of a queue, in the order of their deaths, with their reasons.
func (r *Redis) Dead(queue string) []sluice.TaskInfo {
	r.t.Helper()
	return r.list(queue, sluice.StateDead)
}

// Done returns the tasks of a queue that are done and remembered, see sluice.WithRetention, in the
// order of their ends, with their results.
func (r *Redis) Done(queue string) []sluice.TaskInfo {
	r.t.Helper()
	return r.list(queue, sluice.StateDone)
}

// Stats returns the counts of a queue: also what became of tasks, until a day goes by without any,
// and how many Workers run. A Worker is among them a second after it has started.
func (r *Redis) Stats(queue string) sluice.Stats {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stats, err := r.queue(queue).Stats(ctx)
	r.requireNoError(err)
	return stats
}

// RequireEnqueued fails the test unless a task is in a queue: due, scheduled or leased, and not a
// dead letter. It returns the task.
func (r *Redis) RequireEnqueued(queue, id string) sluice.TaskInfo {
	r.t.Helper()
	t, found := r.get(queue, id)
	switch {
	case !found:
		r.t.Fatalf("sluicetest: no task %q in queue %q; it has %s", id, queue, r.summary(queue))
	case t.State == sluice.StateDead:
		r.t.Fatalf("sluicetest: task %q of queue %q is a dead letter: %s", id, queue, t.Reason)
	case t.State == sluice.StateDone:
		r.t.Fatalf("sluicetest: task %q of queue %q is done", id, queue)
	}
	return t
}

// RequireNotEnqueued fails the test if a task is in a queue: due, scheduled or leased. It may be a
// dead letter, or done.
func (r *Redis) RequireNotEnqueued(queue, id string) {
	r.t.Helper()
	if t, found := r.get(queue, id); found && t.State != sluice.StateDead && t.State != sluice.StateDone {
		r.t.Fatalf("sluicetest: task %q of queue %q is %v%s", id, queue, t.State, lastError(t))
	}
}

// lastError says why a task has failed, at the end of a sentence.
func lastError(t sluice.TaskInfo) string {
	if t.FailedAt.IsZero() {
		return ""
	}
	return fmt.Sprintf(", after attempt %d failed: %s", t.Attempt, t.Reason)
}

// RequireDead fails the test unless a task is among the dead letters of a queue. It returns it.
func (r *Redis) RequireDead(queue, id string) sluice.TaskInfo {
	r.t.Helper()
	t, found := r.get(queue, id)
	switch {
	case !found:
		r.t.Fatalf("sluicetest: no dead letter %q in queue %q; it has %s", id, queue, r.summary(queue))
	case t.State != sluice.StateDead:
		r.t.Fatalf("sluicetest: task %q of queue %q is no dead letter: it is %v%s", id, queue, t.State, lastError(t))
	}
	return t
}

// RequireDone fails the test unless a task is done and remembered. It returns the task.
func (r *Redis) RequireDone(queue, id string) sluice.TaskInfo {
	r.t.Helper()
	t, found := r.get(queue, id)
	switch {
	case !found:
		r.t.Fatalf("sluicetest: nothing is remembered of task %q of queue %q; it has %s", id, queue, r.summary(queue))
	case t.State != sluice.StateDone:
		r.t.Fatalf("sluicetest: task %q of queue %q is not done: it is %v%s", id, queue, t.State, lastError(t))
	}
	return t
}

// RequireStock fails the test unless so many units of an item are left, held by tasks, and sold. A
// test of a shop compares them with the rows of its database.
func (r *Redis) RequireStock(queue, item string, left, held, sold int64) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	info, err := r.queue(queue).Stock(ctx, item)
	if errors.Is(err, sluice.ErrNotFound) {
		r.t.Fatalf("sluicetest: queue %q has no stock of item %q", queue, item)
	}
	r.requireNoError(err)
	if info.Left != left || info.Held != held || info.Sold != sold {
		r.t.Fatalf("sluicetest: of item %q of queue %q %d are left, %d held and %d sold; want %d, %d and %d", item, queue, info.Left, info.Held, info.Sold, left, held, sold)
	}
}

// RequireEmpty fails the test if a queue has tasks: due, scheduled or leased. Dead letters do not
// count, nor does what a Worker's Periodic list keeps in it.
func (r *Redis) RequireEmpty(queue string) {
	r.t.Helper()
	s := r.Stats(queue)
	left := s.Due + s.Scheduled + s.Leased
	if left == 0 {
		return
	}
	var ids []string
	for _, state := range []sluice.State{sluice.StateDue, sluice.StateScheduled, sluice.StateLeased} {
		for _, t := range r.list(queue, state) {
			if t.Header["sluice-period-of"] == t.ID {
				left--
			} else if len(ids) < 10 {
				ids = append(ids, t.ID+" ("+state.String()+")")
			}
		}
	}
	if left > 0 {
		r.t.Fatalf("sluicetest: queue %q is not empty: it has %d tasks, %q among them", queue, left, ids)
	}
}

// patience bounds an assertion, in case that the server hangs.
const patience = 30 * time.Second

func (r *Redis) list(queue string, state sluice.State) (all []sluice.TaskInfo) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for t, err := range r.queue(queue).All(ctx, state) {
		r.requireNoError(err)
		all = append(all, t)
	}
	return all
}

func (r *Redis) get(queue, id string) (t sluice.TaskInfo, found bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	t, err := r.queue(queue).Get(ctx, id)
	if errors.Is(err, sluice.ErrNotFound) {
		return sluice.TaskInfo{}, false
	}
	r.requireNoError(err)
	return t, true
}

// summary says what a queue has.
func (r *Redis) summary(queue string) string {
	r.t.Helper()
	s := r.Stats(queue)
	return strconv.FormatInt(s.Due, 10) + " due, " + strconv.FormatInt(s.Scheduled, 10) + " scheduled, " +
		strconv.FormatInt(s.Leased, 10) + " leased, " + strconv.FormatInt(s.Dead, 10) + " dead"
}

// queue returns the named queue. Its calls are not the program's: no hooks.
func (r *Redis) queue(name string) *sluice.Queue {
	r.t.Helper()
	q, err := sluice.NewQueue(r.client, name, sluice.WithQueuePrefix(r.prefix))
	r.requireNoError(err)
	return q
}

func (r *Redis) requireNoError(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("sluicetest: %v", err)
	}
}
