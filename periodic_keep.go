package sluice

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/redisexec"
)

const (
	// keepInterval is how often a worker looks whether its periodic tasks are there, about, and keepRetry after an error.
	keepInterval = time.Minute
	keepRetry    = 2 * time.Second
	// notBefore is how far ahead an occurrence is to which a task is moved because its schedule has changed.
	// Another worker may have moved it too: if the task were claimed between the look at it and the move, the
	// occurrence would be handled twice.
	notBefore = 2 * time.Second
)

// start begins to keep the tasks in the queue. What it returns ends that.
func (p *periodics) start(ctx context.Context) (stop func()) {
	if len(p.tasks) == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { p.keep(ctx) })
	return func() {
		cancel()
		done.Wait()
	}
}

// keep enqueues, until ctx ends, each task that is not there.
func (p *periodics) keep(ctx context.Context) {
	failing, ended := false, map[string]bool{}
	for ctx.Err() == nil {
		var failed error
		for id, task := range p.tasks {
			err := p.ensure(ctx, task)
			if errors.Is(err, errNoOccurrence) {
				if !ended[id] {
					p.log.Warn("sluice: periodic task has no next occurrence", slog.String("task", id))
				}
				ended[id] = true
				continue
			}
			if err != nil && failed == nil {
				failed = err
			}
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

// errNoOccurrence is the error of ensure for a schedule that has come to its end, or panics.
var errNoOccurrence = errors.New("no next occurrence")

// ensureFor bounds ensure.
const ensureFor = redisexec.MaxQuiet

// ensure enqueues a task if it is not there, and moves it if its schedule has changed so that it is due sooner. It
// leaves one that is due, or being handled: admit sees to that.
func (p *periodics) ensure(ctx context.Context, task *periodicTask) error {
	ctx, cancel := context.WithTimeout(ctx, ensureFor)
	defer cancel()
	e, err := p.queue.Get(ctx, task.ID)
	switch {
	case errors.Is(err, ErrNotFound):
		return p.add(ctx, task)
	case err != nil:
		return err
	case e.State == Dead:
		if err := p.add(ctx, task); err != nil {
			return err
		}
		p.log.Warn("sluice: periodic task was a dead letter, goes on with the next occurrence",
			slog.String("task", task.ID), slog.String("reason", e.Reason))
	case e.State == Scheduled:
		if o, ok := occurrenceIn(e.ID, e.Header); ok && !task.has(o) {
			return p.advance(ctx, task, e.Due)
		}
	}
	return nil
}

// add enqueues the next occurrence of a task that is not there.
func (p *periodics) add(ctx context.Context, task *periodicTask) error {
	now, err := p.queue.serverTime(ctx, task.ID)
	if err != nil {
		return err
	}
	next, ok := task.next(now)
	if !ok {
		return errNoOccurrence
	}
	return p.queue.enqueueBy(ctx, Keep, task.task(next), "")
}

// advance moves a task, which is due then by another schedule, to the next occurrence of the present one if that is sooner. Never
// to a later time: while workers with both schedules run, those with the sooner one would move it back again and again.
func (p *periodics) advance(ctx context.Context, task *periodicTask, due time.Time) error {
	now, err := p.queue.serverTime(ctx, task.ID)
	if err != nil {
		return err
	}
	next, ok := task.next(now.Add(notBefore))
	if !ok || !next.due.Before(due) {
		return nil
	}
	return p.queue.enqueueBy(ctx, Earliest, task.task(next), "")
}

// serverTime returns the time of the server that has a task.
func (q *Queue) serverTime(ctx context.Context, id string) (time.Time, error) {
	const op = "read the time"
	_, value, err := q.byID(ctx, op, id, func(s *shard) redisexec.Request {
		return scriptStats.Request(append(slices.Clip(s.allKeys), s.dropped()))
	})
	if err != nil {
		return time.Time{}, err
	}
	now, err := decodeNow(value)
	return now, wrap(op, q.name, err)
}
