package sluice

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/store"
)

const (
	// putBackFor is how long an occurrence stays away that another worker may know what to do with, about.
	putBackFor = 5 * time.Second
	// forgetAfter is how long an occurrence is put back that no worker knows, before it is removed.
	forgetAfter = 10 * time.Minute
	// tooEarly is by how much a task is claimed before its occurrence if an operator had it run now; less may be a
	// matter of rounding.
	tooEarly = time.Millisecond
)

// periodics is a layer around the handler of a worker, which calls it for the occurrences of periodic tasks:
//
//	admit     the handler is called for an occurrence of the present schedule. Others are put back
//	conclude  when it has returned, its result is reported together with the next occurrence, which takes the task's place in the
//	          same script, whatever the result is
//	keep      enqueues what is not there, and moves what is due too late
//
// So the queue has one task of that ID at any time, and it says which occurrence is the next to be handled: before the report is
// accepted, the present one; after it, the next. A report is sent until it is accepted or the lease ends, as that of any task.
//
// That all processes do this at the same time is safe: what takes a task's place needs the receipt of the task that was looked at.
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
		if err := task.check(); err != nil {
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

// conclusion is what a worker has decided of an occurrence whose handler has returned, until that is accepted. If the lease ends before,
// and this process is handed the occurrence again, it is the result at once.
type conclusion struct {
	occurrence
	disposition store.Disposition
}

// conclusionOf returns what has been decided of an occurrence of a task, if this process has handled it.
func (p *periodics) conclusionOf(id string, o occurrence) (d store.Disposition, ok bool) {
	last, _ := p.queue.concluded.Load(id)
	c, _ := last.(conclusion)
	return c.disposition, c.is(o) && last != nil
}

// accepted forgets what has been decided of a task: what comes back of it now is to be handled.
func (p *periodics) accepted(id string) {
	if p.tasks[id] != nil {
		p.queue.concluded.Delete(id)
	}
}

// admit returns what the handler is to be called with for an occurrence, and whether it is to be
// called. If not, err is the result.
func (p *periodics) admit(t store.Task, o occurrence) (e Entry, call bool, err error) {
	claimed := p.claimed(t)
	task := p.tasks[t.ID]
	if task == nil {
		return e, false, p.putBack(t.ID, o, claimed)
	}
	task.clock.set(claimed)
	if _, isOver := p.conclusionOf(t.ID, o); isOver {
		p.log.Info("sluice: an occurrence of a periodic task is not handled again, since its handler has returned", slog.String("task", t.ID))
		return e, false, nil
	}
	due, err := task.dueFor(o)
	early := due.Sub(claimed)
	switch {
	case errors.Is(err, errNoOccurrence):
		return e, false, nil
	case err != nil:
		return e, false, notHandledError{fmt.Errorf("%w: %w", err, Again(backoff.Half(putBackFor)))}
	case early > 0 && !due.Equal(o.due):
		// Of another schedule: a worker that has it may handle the occurrence, if there is one. It is put back less and less often.
		delay := max(claimed.Sub(o.due), backoff.Half(putBackFor))
		return e, false, notHandledError{fmt.Errorf("not an occurrence of the schedule: %w", Again(min(delay, early)))}
	}
	return task.entry(withoutReceipt(t), due), true, nil
}

// claimed returns when a task was claimed, by the server's clock.
func (p *periodics) claimed(t store.Task) time.Time {
	return store.TimeOf(t.Score).Add(-time.Duration(store.CeilMicros(p.lease)) * time.Microsecond)
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

// conclude has the next occurrence take the task's place, if the present one is not to be handed out again before that. d is what
// would become of the task otherwise.
func (p *periodics) conclude(t store.Task, err error, d store.Disposition) store.Disposition {
	o, ok := occurrenceIn(t.ID, t.Header)
	task := p.tasks[t.ID]
	if _, isOurs := err.(notHandledError); isOurs || !ok || task == nil || d.Action == store.Release { //nolint:errorlint // never wrapped
		return d
	}
	if before, isOver := p.conclusionOf(t.ID, o); isOver {
		return before
	}
	now := task.clock.now()
	if claimed := p.claimed(t); now.Before(claimed) { // by an earlier claim of this process, which was admitted after this one
		now = claimed
	}
	due, err := task.dueFor(o)
	if err != nil {
		due = o.due
	}
	after, before := now, o.before
	if early := due.Sub(now); early < tooEarly {
		after, before = now.Add(max(early, 0)), due
	}
	next, err := task.next(nil, after)
	isRepeated := d.Action == store.Retry || d.Action == store.Snooze
	if isRepeated && (err != nil || now.Add(d.Delay).Before(next.due)) {
		return d
	}
	if err == nil {
		next.before = before
		d.Next = task.nextOf(next)
	}
	if d.Next != nil || d.Action == store.Finish { // else it is a dead letter, which may be revived
		p.queue.concluded.Store(t.ID, conclusion{o, d})
	}
	return d
}
