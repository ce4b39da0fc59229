package sluice

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

const (
	// keepInterval is how often a worker looks whether its periodic tasks are there, about, and keepRetry after an error.
	keepInterval = time.Minute
	keepRetry    = 2 * time.Second
)

// start begins to keep the tasks in the queue. What it returns ends that, and waits for the end.
func (p *periodics) start(ctx context.Context) (stop func()) {
	if len(p.tasks) == 0 {
		return func() {}
	}
	return background.Start(ctx, p.keep)
}

// keep looks after each task, again and again until ctx ends.
func (p *periodics) keep(ctx context.Context) {
	failing, ended := false, map[string]bool{}
	for ctx.Err() == nil {
		var failed error
		for id, task := range p.tasks {
			err := p.ensure(ctx, task)
			isEnded := errors.Is(err, errNoOccurrence) || errors.Is(err, errNoAnswer)
			switch {
			case isEnded && !ended[id]:
				p.log.Warn("sluice: periodic task has no next occurrence", slog.String("task", id), slog.String("error", err.Error()))
			case !isEnded && err != nil && failed == nil:
				failed = err
			}
			ended[id] = isEnded
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

// ensureFor bounds ensure.
const ensureFor = redisexec.MaxQuiet

// ensure enqueues a task if it is not there, and moves it if it is due after the next occurrence. It leaves one that is due, or
// being handled: admit and conclude see to that.
func (p *periodics) ensure(ctx context.Context, task *periodicTask) error {
	ctx, cancel := context.WithTimeout(ctx, ensureFor)
	defer cancel()
	t, now, err := p.queue.get(ctx, task.ID)
	switch {
	case errors.Is(err, ErrNotFound):
		return p.add(ctx, task, now)
	case err != nil:
		return err
	case t.State == StateDone: // its schedule had ended, or no worker had it
		return p.add(ctx, task, now)
	case t.State == StateDead:
		if err := p.add(ctx, task, now); err != nil {
			return err
		}
		p.log.Warn("sluice: periodic task was a dead letter, goes on with the next occurrence",
			slog.String("task", task.ID), slog.String("reason", t.Reason))
	case t.State == StateScheduled:
		if o, ok := occurrenceIn(t.ID, t.Header); ok {
			return p.advance(ctx, task, t.Entry, o, now)
		}
	}
	return nil
}

// add enqueues the next occurrence of a task that is not there.
func (p *periodics) add(ctx context.Context, task *periodicTask, now time.Time) error {
	const op = "enqueue periodic task"
	next, err := task.next(ctx.Done(), now)
	if err != nil {
		return err
	}
	t := task.task(next)
	_, err = p.queue.byID(ctx, op, t.ID, func() redisexec.Request {
		args := p.queue.store.NewBatch(1, DuplicatesKeep.String(), "0", 0)
		args.Add(t.stored())
		return p.queue.store.Enqueue(args)
	})
	if errors.Is(err, ErrUnderReplicated) {
		return nil
	}
	return err
}

// advance moves a task to the next occurrence if that is sooner than it is due: its schedule has changed, or the server's clock was
// ahead when it was put there. Never to a later time: while workers with two schedules run, those with the sooner one would move it
// back again and again. Nor to an occurrence that has been handled: a clock that was ahead may have had it handled early.
func (p *periodics) advance(ctx context.Context, task *periodicTask, e Entry, o occurrence, now time.Time) error {
	if now.Before(o.before) {
		now = o.before
	}
	next, err := task.next(ctx.Done(), now)
	if err != nil || e.Due.Sub(next.due) <= time.Microsecond { // which Redis may have rounded up
		return err
	}
	next.before = o.before
	err = p.queue.putNext(ctx, e, task.nextOf(next))
	if errors.Is(err, ErrStale) || errors.Is(err, ErrUnderReplicated) { // it has changed meanwhile, or is there
		return nil
	}
	return err
}

// putNext has what comes next take the place of a task whose receipt is good, leased or not.
func (q *Queue) putNext(ctx context.Context, e Entry, next *store.Next) error {
	return q.settle(ctx, "move periodic task", store.Disposition{Next: next}, e)
}
