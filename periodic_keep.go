package sluice

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

const (
	// keepInterval is how often a worker looks whether its periodic tasks are there, about, and keepRetry
	// after an error.
	keepInterval = time.Minute
	keepRetry    = 2 * time.Second
	// maxSends is how many requests a worker has under way for its periodic tasks: at its start all may be
	// missing, and a client has few connections.
	maxSends = 4
	// maxKept is how many tasks one look is about at most. It reads little of each.
	maxKept = 500
)

// start begins to keep the tasks in the queue. What it returns ends that, and waits for the end.
func (p *periodics) start(ctx context.Context) (stop func()) {
	if len(p.tasks) == 0 {
		return func() {}
	}
	return background.Start(ctx, p.keep)
}

// keep looks after all tasks, again and again until ctx ends.
func (p *periodics) keep(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		var failed error
		for part := range slices.Chunk(p.order, maxKept) {
			failed = cmp.Or(failed, p.look(ctx, part))
		}
		pause := keepInterval
		if failed != nil {
			pause = keepRetry
			if !failing && ctx.Err() == nil {
				p.log.Warn("sluice: worker cannot see to its periodic tasks", slog.String("error", failed.Error()))
			}
		}
		failing = failed != nil
		backoff.Sleep(ctx, pause/2+backoff.Full(pause))
	}
}

// look asks the server which tasks of a part are not in the queue as expected, and has each mended once
// its schedule has said what is right. What is due, or being handled, is left alone: admit and conclude
// see to that.
func (p *periodics) look(ctx context.Context, part []*periodicTask) error {
	wanted, ids := make([]store.Wanted, len(part)), make([]string, len(part))
	for i, task := range part {
		ids[i] = task.ID
		wanted[i] = store.Wanted{ID: task.ID, Unless: store.ScoreText(math.Float64frombits(task.expected.Load()))}
	}
	reply, err := p.run(ctx, p.queue.store.Get(store.NoPayloadButHeader, wanted...))
	if err != nil {
		return err
	}
	now, found, err := store.DecodeGot(reply.Value, ids...)
	if err != nil {
		return err
	}
	p.noteTime(now)
	for _, i := range found {
		t := infoOf(i)
		o, isOne := occurrenceIn(t.ID, t.Header)
		switch task := p.tasks[t.ID]; {
		case t.State == StateScheduled && !isOne, t.State == StateDue, t.State == StateLeased:
		case t.State == StateScheduled:
			task.ask(o, t.Due, now, func(next occurrence) error { return task.move(ctx, t.Entry, o, next) })
		default:
			task.ask(occurrence{}, now, now, func(next occurrence) error { return task.enqueue(ctx, t, next) })
		}
	}
	return nil
}

// move moves a task that is due at a wrong time, unless it has changed since it was looked at.
func (p *periodicTask) move(ctx context.Context, e Entry, from, to occurrence) error {
	if from == to {
		p.expected.Store(math.Float64bits(e.Score))
		return nil
	}
	d := store.Disposition{Action: store.Snooze, Next: p.next(to)}
	_, err := p.periodics.run(ctx, p.periodics.queue.store.Report([]store.Item{{ID: e.ID, Receipt: receiptOf(e), Disposition: d}}))
	return err
}

// enqueue enqueues a task that is not there. It was done, since its schedule had ended or no worker had
// it, or was a dead letter, perhaps.
func (p *periodicTask) enqueue(ctx context.Context, was TaskInfo, o occurrence) error {
	q := p.periodics.queue
	args, task := q.store.NewBatch(1, DuplicatesKeep.String(), "0", 0), p.task(o)
	args.Add(task.stored())
	_, err := p.periodics.run(ctx, q.store.Enqueue(args))
	if err == nil && was.State == StateDead {
		p.periodics.log.Warn("sluice: periodic task was a dead letter, goes on with the next occurrence",
			slog.String("task", p.ID), slog.String("reason", was.Reason))
	}
	return err
}

// run sends a request, in its turn. The keeper, and a schedule's goroutine, wait for the answer no longer
// than a loop may.
func (p *periodics) run(ctx context.Context, r redisexec.Request) (redisexec.Reply, error) {
	select {
	case p.sends <- struct{}{}:
		defer func() { <-p.sends }()
	case <-ctx.Done():
		return redisexec.Reply{}, ctx.Err()
	}
	r.Bounded = true
	return p.queue.executor.Run(ctx, r)
}
