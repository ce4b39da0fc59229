package queues

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/store"
)

// Periodic is work that is due again and again: the root's Periodic.
type Periodic struct {
	ID          string
	Kind        string
	Payload     []byte
	Header      map[string]string
	Schedule    interface{ Next(t time.Time) time.Time }
	SkipsMissed bool // what was not begun within skipAfter is not handled
}

// What the header of an occurrence has, beside the times that occurrence.times names.
const (
	// HeaderPrefix is what the keys begin with that are the library's.
	HeaderPrefix   = "sluice-"
	headerPeriodOf = "sluice-period-of"
)

// occurrence is a time at which a periodic task is due.
type occurrence struct {
	due time.Time
	// after is the time after which due is the first of the schedule: a schedule with another
	// Next(after) is another one. (That due is one of a schedule's times would say less: a sooner
	// one may have been added, and a schedule that counts from t has other times for each t.) It is
	// due itself, or later, if the occurrence was missed; and when its handler returned, if it was
	// handled.
	after time.Time
	// before is the due time of the last occurrence that was handled. It is due itself if this one
	// was, and it is not known yet which one is next.
	before time.Time
	list   time.Time // when the Worker started whose schedule it is of
	// unknown is when a Worker claimed it first that does not have the task in its list, since one
	// that has it did.
	unknown time.Time
	begun   time.Time // when a handler had it that goes on with it later; zero if attempts say so
}

// times returns the times of an occurrence, by the keys of a header that has them.
func (o *occurrence) times() map[string]*time.Time {
	return map[string]*time.Time{
		"sluice-period": &o.due, "sluice-period-after": &o.after, "sluice-period-before": &o.before,
		"sluice-period-list": &o.list, "sluice-period-unknown": &o.unknown, "sluice-period-begun": &o.begun,
	}
}

// isHandled reports whether the occurrence was handled, and only keeps the place of the next one.
func (o occurrence) isHandled() bool { return !o.due.After(o.before) }

// isMissed reports whether the occurrence was enqueued after its time.
func (o occurrence) isMissed() bool { return !o.due.After(o.after) }

// handled returns what keeps the place of the next occurrence, until it is known which one that is.
// An occurrence that was missed counts as the one that was in the queue, which is before: if the
// server's clock was ahead, those from then on are still to come.
func (o occurrence) handled(now time.Time) occurrence {
	if o.isMissed() {
		o.due = o.before
	}
	o.after, o.before, o.begun, o.unknown = now, o.due, time.Time{}, time.Time{}
	return o
}

// header returns the header of the task with that ID for the occurrence.
func (o occurrence) header(id string, of map[string]string) map[string]string {
	header := make(map[string]string, len(of)+7)
	maps.Copy(header, of)
	header[headerPeriodOf] = id
	for key, at := range o.times() {
		if !at.IsZero() {
			header[key] = at.UTC().Format(time.RFC3339Nano)
		}
	}
	return header
}

// occurrenceIn returns the occurrence that the header of the task with that ID is of, and whether
// it is of one. A handler may have given its header to another task, to go on with a trace: that
// task is none.
func occurrenceIn(id string, header map[string]string) (occurrence, bool) {
	if header[headerPeriodOf] != id {
		return occurrence{}, false
	}
	var o occurrence
	for key, at := range o.times() {
		if text, has := header[key]; has {
			var err error
			if *at, err = time.Parse(time.RFC3339Nano, text); err != nil {
				return o, false
			}
		}
	}
	return o, !o.due.IsZero()
}

// next returns what takes a task's place for an occurrence.
func (p *Periodic) next(o occurrence) *store.Next {
	d := p.draft(o)
	return &store.Next{At: d.At, Payload: d.Enqueue().Payload}
}

// draft returns the task that is enqueued for an occurrence.
func (p *Periodic) draft(o occurrence) store.Draft {
	return store.Draft{ID: p.ID, Kind: p.Kind, Payload: p.Payload, Header: o.header(p.ID, p.Header), At: o.due}
}

// Longest returns the task that is enqueued for an occurrence whose header is the longest.
func (p *Periodic) Longest() store.Draft {
	at := time.Date(2000, 1, 1, 0, 0, 0, 1, time.UTC) // as text, none is longer
	return p.draft(occurrence{at, at, at, at, at, at})
}

// handed returns a task that was claimed for an occurrence as the handler is given it.
func (p *Periodic) handed(t store.Task, o occurrence) store.Task {
	t.Kind, t.Payload = p.Kind, bytes.Clone(p.Payload)
	t.Header = maps.Clone(t.Header)
	maps.Copy(t.Header, p.Header)
	t.Due = o.due
	return t
}

const (
	// putBackFor is how long an occurrence stays away, about, of a task that another worker may
	// know.
	putBackFor = 5 * time.Second
	// forgetAfter is how long an occurrence is put back that no worker knows, before it is removed.
	forgetAfter = 10 * time.Minute
)

// periodic is the layer around the handler of a worker for the occurrences of periodic tasks:
//
//	admit     says whether the handler is called for an occurrence, or what takes its place without that
//	conclude  reports the handler's result together with the next occurrence, which takes the task's
//	          place in the same script, whatever the result is
//	keep      enqueues what is not there, and moves what is due at a wrong time
//
// So the queue has one task of that ID at any time, and its header says which occurrence is the
// next to be handled: before the report is accepted, the present one; after it, the next one. If
// the schedule does not say in time which one that is, the header says that the present one was
// handled; what is next takes its place when a worker claims it, or keeps it, and knows. A report
// is sent until it is accepted or the lease ends, as that of any task.
//
// All processes may do this at the same time: to take a task's place needs the receipt of the task
// that was looked at.
type periodic struct {
	tasks map[string]*periodicTask
	sends chan struct{} // as many requests are under way as it has room for
	made  time.Time     // when Run began, by the local clock
	// madeAt is when that was, by the server's. Its time is read with something else, which takes
	// its time: so what follows from it may be a little past, and is never ahead.
	madeAt atomic.Pointer[time.Time]
}

// startPeriodic has the worker know its periodic tasks.
func (w *Worker) startPeriodic() {
	w.made, w.tasks, w.sends = time.Now(), make(map[string]*periodicTask, len(w.Periodic)), make(chan struct{}, maxSends)
	for _, p := range w.Periodic {
		task := &periodicTask{Periodic: p, worker: w}
		w.tasks[task.ID] = task
	}
}

// noteTime notes the time of the server. If it was set back far, no task is known to be due when it
// is to be, until the next look.
func (w *Worker) noteTime(server time.Time) {
	at := server.Add(-time.Since(w.made))
	if before := w.madeAt.Swap(&at); before != nil && before.Sub(at) > aheadMost {
		for _, task := range w.tasks {
			task.expected.Store(0)
		}
	}
}

// listed returns when Run began, by the server's clock. Its time was noted before.
func (w *Worker) listed() time.Time { return *w.madeAt.Load() }

// notHandledError is the result of an occurrence for which the handler was not called. It says what
// becomes of it.
type notHandledError struct {
	disposition store.Disposition
	why         string
}

func (e *notHandledError) Error() string { return "the handler was not called: " + e.why }

// conclusion is what a worker has decided of an occurrence whose handler has returned, until that
// is accepted. If the lease ends before, and this process is handed the occurrence again, it is the
// result at once.
type conclusion struct {
	occurrence
	disposition store.Disposition
}

// conclusionOf returns what has been decided of an occurrence of a task, if this process has
// handled it.
func (w *Worker) conclusionOf(id string, o occurrence) (d store.Disposition, ok bool) {
	last, _ := w.Queue.concluded.Load(id)
	c, _ := last.(conclusion)
	c.unknown, o.unknown = time.Time{}, time.Time{} // others note that, and it is the same occurrence
	return c.disposition, c.occurrence == o && last != nil
}

// Accepted forgets what has been decided of a task: what comes back of it now is to be handled. Who
// awaits its end looks.
func (w *Worker) Accepted(t store.Task) {
	w.Queue.awaiting.hint(t.ID)
	if w.tasks[t.ID] != nil {
		w.Queue.concluded.Delete(t.ID)
	}
}

// admit returns what the handler is to be called with for an occurrence. If it is not to be called,
// the error is a notHandledError.
func (w *Worker) admit(t store.Task, o occurrence) (store.Task, error) {
	claimed, task := w.claimed(t), w.tasks[t.ID]
	if task == nil {
		return t, w.putBack(t, o, claimed)
	}
	w.noteTime(claimed)
	if d, isOver := w.conclusionOf(t.ID, o); isOver {
		return t, &notHandledError{d, "it has returned before, for the same occurrence"}
	}
	isLate := t.Attempt == 1 && o.begun.IsZero() && !o.isMissed() && claimed.Sub(o.due) >= missedAfter
	if isLate || o.isHandled() {
		answer, isKnown := task.plan(o, claimed)
		if !isKnown || answer.err != nil || answer.next != o {
			return t, task.replaced(answer, isKnown)
		}
	}
	return task.handed(t, o), nil
}

// replaced returns, as a notHandledError, what becomes of an occurrence that is not to be handled:
// what is next takes its place. If that is not known yet, the occurrence is put back for about as
// long as the schedule has been thinking, so that it is late by its own slowness, and those of
// schedules that hang do not keep the handlers busy.
func (p *periodicTask) replaced(answer *planning, isKnown bool) error {
	switch {
	case isKnown && answer.err == nil:
		return &notHandledError{store.Disposition{Action: store.Again, Next: p.next(answer.next)}, "another occurrence takes the place of this one"}
	case isKnown && errors.Is(answer.err, errNoOccurrence):
		return &notHandledError{store.Disposition{Action: store.Finish}, answer.err.Error()}
	}
	delay := keepInterval / 2
	if !isKnown {
		delay = min(max(time.Since(answer.asked), 50*time.Millisecond), keepInterval)
	}
	return &notHandledError{store.Disposition{Action: store.Again, Delay: delay}, errNoAnswer.Error()}
}

// claimed returns when a task was claimed, by the server's clock.
func (w *Worker) claimed(t store.Task) time.Time {
	return store.TimeOf(t.Score).Add(-time.Duration(store.CeilMicros(w.Loop.Lease)) * time.Microsecond).UTC()
}

// putBack returns, as a notHandledError, what becomes of an occurrence of a task that this worker
// does not know. Others may: a program that has it is being deployed. The header says since when it
// has been looking for a worker that does.
func (w *Worker) putBack(t store.Task, o occurrence, now time.Time) error {
	const why = "not a periodic task of this worker"
	if o.unknown.IsZero() || t.Attempt > 1 { // a handler had it: what is put back begins with its first attempt
		o.unknown = now
	}
	if now.Sub(o.unknown) >= forgetAfter {
		w.Loop.Log.Info("sluice: removed a periodic task that no worker knows", slog.String("task", t.ID))
		return &notHandledError{store.Disposition{Action: store.Finish}, why}
	}
	again := &store.Next{At: now.Add(backoff.Half(putBackFor)), Payload: store.Pack(t.Kind, o.header(t.ID, t.Header), time.Time{}, t.Payload)}
	return &notHandledError{store.Disposition{Action: store.Again, Next: again}, why}
}

// conclude has the next occurrence take the task's place, if the present one is not to be handed
// out again before that. d is what would become of the task otherwise.
func (w *Worker) conclude(t store.Task, d store.Disposition) store.Disposition {
	o, ok := occurrenceIn(t.ID, t.Header)
	task := w.tasks[t.ID]
	if !ok || task == nil {
		return d
	}
	if before, isOver := w.conclusionOf(t.ID, o); isOver {
		return before
	}
	now := backoff.Later(w.listed().Add(time.Since(w.made)), w.claimed(t)) // an earlier claim may have noted its time
	if d.Action == store.Release {
		return task.later(t, o, d, now)
	}
	next, isEnd := o.handled(now), false
	if o.due.Sub(now) >= roundedOff { // an operator had it run early: it is still to come
		next = o
		next.after, next.begun, next.unknown = now, time.Time{}, time.Time{}
	} else if answer, isKnown := task.plan(next, now); isKnown {
		isEnd = errors.Is(answer.err, errNoOccurrence)
		if answer.err == nil {
			next = answer.next
		}
	}
	isRepeated := d.Action == store.Retry || d.Action == store.Again
	if isRepeated && (isEnd || next.isHandled() || now.Add(d.Delay).Before(next.due)) {
		return task.later(t, o, d, now)
	}
	if !isEnd {
		d.Next = task.next(next)
	}
	if d.Next != nil || d.Action != store.Bury { // else it is a dead letter, which may be revived
		w.Queue.concluded.Store(t.ID, conclusion{o, d})
	}
	return d
}

// later returns what becomes of an occurrence whose handler is called again. What no attempt says, its
// header does: that it has begun, so that it is not one that was missed, and that a worker knows it.
func (p *periodicTask) later(t store.Task, o occurrence, d store.Disposition, now time.Time) store.Disposition {
	if t.Attempt > 1 || d.Action == store.Retry {
		return d
	}
	of := o
	if of.unknown = (time.Time{}); p.SkipsMissed && o.begun.IsZero() {
		of.begun = now
	}
	if of != o {
		d.Next = &store.Next{At: now.Add(d.Delay), Payload: p.next(of).Payload}
	}
	return d
}
