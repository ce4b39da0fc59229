package sluice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/taskloop"
)

const (
	// putBackFor is how long an occurrence stays away that another worker may know what to do with, about.
	putBackFor = 5 * time.Second
	// forgetAfter is how long an occurrence is put back that no worker knows, before it is removed.
	forgetAfter = 10 * time.Minute
	// placeFor is how long a worker tries to enqueue the next occurrence, and placeLastFor when it has to stop.
	placeFor     = 3 * time.Second
	placeLastFor = 500 * time.Millisecond
	// tooEarly is by how much a task is claimed before its occurrence if an operator had it run now; less may be a
	// matter of rounding.
	tooEarly = time.Millisecond
)

// periodics is a layer around the handler of a worker, which calls it for the occurrences of periodic tasks:
//
//	admit     the handler is called for an occurrence of the present schedule. Others are put back
//	conclude  when it has returned, the next occurrence is enqueued, behind the lease of the present one (see Deferred). Then the
//	          result is reported, whatever it is: the next occurrence takes the task's place
//	keep      enqueues what is not there
//
// So there is one task of that ID at any time, and a crash loses nothing: before the next occurrence is enqueued, the present one
// is handed out again; after it, the next one takes over when the lease ends. That all processes do this at the same time is safe:
// to enqueue changes nothing except if the new occurrence is earlier (see Earliest), and, if it is the next one, nobody else has
// been handed the task since.
type periodics struct {
	queue *Queue
	lease time.Duration
	log   *slog.Logger
	tasks map[string]*periodicTask
	// unknown has, for each ID that is not in tasks, its last occurrence.
	unknown sync.Map
}

// stranger is an occurrence of a periodic task that this worker does not know.
type stranger struct {
	due   time.Time
	since time.Time // when it was first claimed, by the local clock
}

// newPeriodics returns the layer for the Periodics of a worker, which may be none.
func (w *Worker) newPeriodics(lease time.Duration, log *slog.Logger) (*periodics, error) {
	p := &periodics{queue: w.Queue, lease: lease, log: log, tasks: make(map[string]*periodicTask, len(w.Periodic))}
	for _, task := range w.Periodic {
		if err := task.check(w.Queue); err != nil {
			return nil, err
		}
		if p.tasks[task.ID] != nil {
			return nil, fmt.Errorf("%w: two Periodics with one ID", ErrInvalid)
		}
		p.tasks[task.ID] = &periodicTask{Periodic: task}
	}
	return p, nil
}

// notHandledError is the result of an occurrence for which the handler was not called. It stays as it is.
type notHandledError struct{ error }

func (e notHandledError) Unwrap() error { return e.error }

// admit returns what the handler is to be called with for an occurrence, and whether it is to be
// called. If not, err is the result.
func (p *periodics) admit(t taskloop.Task, o occurrence) (e Entry, call bool, err error) {
	claimed := timeOf(t.Score).Add(-time.Duration(ceilMicros(p.lease)) * time.Microsecond) // by the server's clock
	task := p.tasks[t.ID]
	if task == nil {
		return e, false, p.putBack(t.ID, o, claimed)
	}
	task.clock.set(claimed)
	due, ok := task.dueFor(o)
	if !ok {
		return e, false, nil // the schedule has come to its end
	}
	if early := due.Sub(claimed); early > 0 && !due.Equal(o.due) {
		// Of another schedule: a worker that has it may handle the occurrence. If there is none any more, that is tried less and
		// less often.
		delay := min(max(claimed.Sub(o.due), backoff.Half(putBackFor)), early)
		return e, false, notHandledError{fmt.Errorf("not an occurrence of the schedule: %w", Again(delay))}
	}
	return task.entry(entryOf(t), due), true, nil
}

// putBack returns the result of an occurrence of a task that this worker does not know. Others may: a program that has it is
// being deployed.
func (p *periodics) putBack(id string, o occurrence, claimed time.Time) error {
	seen, _ := p.unknown.LoadOrStore(id, stranger{o.due, time.Now()})
	first := seen.(stranger) //nolint:forcetypeassert // see LoadOrStore
	if !first.due.Equal(o.due) {
		first = stranger{o.due, time.Now()}
		p.unknown.Store(id, first)
	}
	if claimed.Sub(o.due) >= forgetAfter && time.Since(first.since) >= forgetAfter {
		p.unknown.Delete(id)
		p.log.Info("sluice: removed a periodic task that no worker knows", slog.String("task", id))
		return nil
	}
	return notHandledError{fmt.Errorf("not a periodic task of this worker: %w", Again(max(backoff.Half(putBackFor), o.due.Sub(claimed))))}
}

// conclude enqueues the next occurrence, if a task is not to be handed out again before that for the present one. It
// returns what is to become of the task: d, except if the next one could not be enqueued. ctx is the one that the handler was
// called with, without its Timeout.
func (p *periodics) conclude(ctx context.Context, t taskloop.Task, err error, d taskloop.Disposition) taskloop.Disposition {
	o, ok := occurrenceIn(t.ID, t.Header)
	task := p.tasks[t.ID]
	if _, isOurs := err.(notHandledError); isOurs || !ok || task == nil || d.Action == taskloop.Release { //nolint:errorlint // never wrapped
		return d
	}
	now := task.clock.now()
	after := now
	if due, _ := task.dueFor(o); due.After(now) && due.Sub(now) < tooEarly {
		after = due
	}
	next, ok := task.next(after)
	if !ok {
		return d
	}
	if (d.Action == taskloop.Retry || d.Action == taskloop.Snooze) && now.Add(d.Delay).Before(next.due) {
		return d
	}
	if err := p.place(ctx, task, next, receiptText(t.Score)); err != nil {
		// The task stays, with the header of this occurrence, and is due at the next one: to give it back works on a full server
		// too.
		p.log.Warn("sluice: the next occurrence of a periodic task was not enqueued, this one is put off until then",
			slog.String("task", t.ID), slog.String("error", err.Error()))
		return taskloop.Disposition{Action: taskloop.Snooze, Delay: next.due.Sub(now)}
	}
	return d
}

// place enqueues an occurrence behind the one that is being handled. It works for a while, even if ctx has ended:
// when a worker stops, the results of its handlers still count.
func (p *periodics) place(ctx context.Context, task *periodicTask, o occurrence, holder string) error {
	limit := placeFor
	if ctx.Err() != nil {
		limit = placeLastFor
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	for pause := 10 * time.Millisecond; ; pause *= 2 {
		// An attempt may have had no reply, or come late: once another has been handed the task, it changes nothing.
		err := p.queue.enqueueBy(ctx, Earliest, task.task(o), holder)
		if !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrUnknown) || ctx.Err() != nil {
			return err
		}
		backoff.Sleep(ctx, backoff.Half(pause))
	}
}

// enqueueBy is Enqueue with a policy of its own, and without the hooks. That too few replicas have it is no error. If holder is
// not "", a task of that ID which is in the queue stays as it is, unless that receipt is of its last claim.
func (q *Queue) enqueueBy(ctx context.Context, policy Duplicates, t Task, holder string) error {
	const op = "enqueue periodic task"
	_, _, err := q.byID(ctx, op, t.ID, func(s *shard) redisexec.Request {
		args := s.newTaskArgs(policy, 1, "0", 0)
		args.holdBy(holder)
		args.add(packedTask{t.due(), t.ID, t.packed()})
		r := args.request()
		r.Bounded = true // a place in the queue is tried again on another connection
		return r
	})
	if errors.Is(err, ErrUnderReplicated) {
		return nil
	}
	return err
}
