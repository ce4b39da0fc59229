package sluice

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/store"
)

const (
	// putBackFor is how long an occurrence stays away, about, of a task that another worker may know.
	putBackFor = 5 * time.Second
	// forgetAfter is how long an occurrence is put back that no worker knows, before it is removed.
	forgetAfter = 10 * time.Minute
)

// periodics is a layer around the handler of a worker, which calls it for the occurrences of periodic
// tasks:
//
//	admit     says whether the handler is called for an occurrence, or what takes its place without that
//	conclude  reports the handler's result together with the next occurrence, which takes the task's
//	          place in the same script, whatever the result is
//	keep      enqueues what is not there, and moves what is due at a wrong time
//
// So the queue has one task of that ID at any time, and its header says which occurrence is the next to
// be handled: before the report is accepted, the present one; after it, the next one. If the schedule
// does not say in time which one that is, the header says that the present one was handled; what is
// next takes its place when a worker claims it, or keeps it, and knows. A report is sent until it is
// accepted or the lease ends, as that of any task.
//
// All processes may do this at the same time: to take a task's place needs the receipt of the task that
// was looked at.
type periodics struct {
	queue *Queue
	lease time.Duration
	log   *slog.Logger
	tasks map[string]*periodicTask
	order []*periodicTask // those of tasks
	sends chan struct{}   // as many requests are under way as it has room for
	made  time.Time       // when this was made, by the local clock
	// madeAt is when that was, by the server's. Its time is read with something else, which takes its time: so
	// what follows from it may be a little past, and is never ahead.
	madeAt atomic.Pointer[time.Time]
}

// newPeriodics returns the layer for the Periodics of a worker, which may be none.
func (w *Worker) newPeriodics(lease time.Duration, log *slog.Logger) (*periodics, error) {
	p := &periodics{queue: w.Queue, lease: lease, log: log, made: time.Now(), tasks: make(map[string]*periodicTask, len(w.Periodic)), sends: make(chan struct{}, maxSends)}
	for _, periodic := range w.Periodic {
		if err := periodic.check(); err != nil {
			return nil, err
		}
		if p.tasks[periodic.ID] != nil {
			return nil, fmt.Errorf("%w: two Periodics with one ID", ErrInvalid)
		}
		task := &periodicTask{Periodic: periodic, periodics: p}
		p.tasks[task.ID], p.order = task, append(p.order, task)
	}
	return p, nil
}

// noteTime notes the time of the server.
func (p *periodics) noteTime(server time.Time) {
	at := server.Add(-time.Since(p.made))
	p.madeAt.Store(&at)
}

// listed returns when Run began, by the server's clock. Its time was noted before.
func (p *periodics) listed() time.Time { return *p.madeAt.Load() }

// notHandledError is the result of an occurrence for which the handler was not called. It says what
// becomes of it.
type notHandledError struct {
	disposition store.Disposition
	why         string
}

func (e *notHandledError) Error() string { return "the handler was not called: " + e.why }

// conclusion is what a worker has decided of an occurrence whose handler has returned, until that is
// accepted. If the lease ends before, and this process is handed the occurrence again, it is the result
// at once.
type conclusion struct {
	occurrence
	disposition store.Disposition
}

// conclusionOf returns what has been decided of an occurrence of a task, if this process has handled it.
func (p *periodics) conclusionOf(id string, o occurrence) (d store.Disposition, ok bool) {
	last, _ := p.queue.concluded.Load(id)
	c, _ := last.(conclusion)
	return c.disposition, c.occurrence == o && last != nil
}

// accepted forgets what has been decided of a task: what comes back of it now is to be handled.
func (p *periodics) accepted(id string) {
	if p.tasks[id] != nil {
		p.queue.concluded.Delete(id)
	}
}

// admit returns what the handler is to be called with for an occurrence. If it is not to be called, the
// error is a notHandledError.
func (p *periodics) admit(t store.Task, o occurrence) (Entry, error) {
	claimed, task := p.claimed(t), p.tasks[t.ID]
	if task == nil {
		return Entry{}, p.putBack(t, o, claimed)
	}
	p.noteTime(claimed)
	if d, isOver := p.conclusionOf(t.ID, o); isOver {
		return Entry{}, &notHandledError{d, "it has returned before, for the same occurrence"}
	}
	isLate := t.Attempt == 1 && !o.isMissed() && claimed.Sub(o.due) >= missedAfter
	if isLate || o.isHandled() {
		answer, isKnown := task.plan(o, claimed)
		if !isKnown || answer.err != nil || answer.next != o {
			return Entry{}, task.replaced(answer, isKnown)
		}
	}
	return task.entry(withoutReceipt(t), o), nil
}

// replaced returns, as a notHandledError, what becomes of an occurrence that is not to be handled: what
// is next takes its place. If that is not known yet, the occurrence is put back for about as long as the
// schedule has been thinking, so that it is late by its own slowness, and those of schedules that hang do
// not keep the handlers busy.
func (p *periodicTask) replaced(answer *planning, isKnown bool) error {
	switch {
	case isKnown && answer.err == nil:
		return &notHandledError{store.Disposition{Action: store.Snooze, Next: p.next(answer.next)}, "another occurrence takes the place of this one"}
	case isKnown && errors.Is(answer.err, errNoOccurrence):
		return &notHandledError{store.Disposition{Action: store.Finish}, answer.err.Error()}
	}
	delay := keepInterval / 2
	if !isKnown {
		delay = min(max(time.Since(answer.asked), 50*time.Millisecond), keepInterval)
	}
	return &notHandledError{store.Disposition{Action: store.Snooze, Delay: delay}, errNoAnswer.Error()}
}

// claimed returns when a task was claimed, by the server's clock.
func (p *periodics) claimed(t store.Task) time.Time {
	return store.TimeOf(t.Score).Add(-time.Duration(store.CeilMicros(p.lease)) * time.Microsecond).UTC()
}

// putBack returns, as a notHandledError, what becomes of an occurrence of a task that this worker does
// not know. Others may: a program that has it is being deployed. The header says since when it has been
// looking for a worker that does.
func (p *periodics) putBack(t store.Task, o occurrence, now time.Time) error {
	const why = "not a periodic task of this worker"
	if o.unknown.IsZero() {
		o.unknown = now
	}
	if now.Sub(o.unknown) >= forgetAfter {
		p.log.Info("sluice: removed a periodic task that no worker knows", slog.String("task", t.ID))
		return &notHandledError{store.Disposition{Action: store.Finish}, why}
	}
	again := &store.Next{At: now.Add(backoff.Half(putBackFor)), Payload: store.Pack(t.Kind, o.header(t.ID, t.Header), t.Payload)}
	return &notHandledError{store.Disposition{Action: store.Snooze, Next: again}, why}
}

// conclude has the next occurrence take the task's place, if the present one is not to be handed out
// again before that. d is what would become of the task otherwise.
func (p *periodics) conclude(t store.Task, d store.Disposition) store.Disposition {
	o, ok := occurrenceIn(t.ID, t.Header)
	task := p.tasks[t.ID]
	if !ok || task == nil || d.Action == store.Release {
		return d
	}
	if before, isOver := p.conclusionOf(t.ID, o); isOver {
		return before
	}
	now := later(p.listed().Add(time.Since(p.made)), p.claimed(t)) // an earlier claim may have noted its time
	next, isEnd := o.handled(now), false
	if o.due.Sub(now) >= roundedOff { // an operator had it run early: it is still to come
		next = o
		next.after = now
	} else if answer, isKnown := task.plan(next, now); isKnown {
		isEnd = errors.Is(answer.err, errNoOccurrence)
		if answer.err == nil {
			next = answer.next
		}
	}
	isRepeated := d.Action == store.Retry || d.Action == store.Snooze
	if isRepeated && (isEnd || next.isHandled() || now.Add(d.Delay).Before(next.due)) {
		return d
	}
	if !isEnd {
		d.Next = task.next(next)
	}
	if d.Next != nil || d.Action == store.Finish { // else it is a dead letter, which may be revived
		p.queue.concluded.Store(t.ID, conclusion{o, d})
	}
	return d
}
