package sluice

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/store"
)

// Periodic is work that is due again and again. Give the same list to the Workers of all processes: each
// occurrence of the schedule is handed to one of them.
//
// It is an ordinary task, with the next occurrence as its due time: Get, List, Cancel, hooks and the log
// know it by its ID, which must not be used for anything else. A Worker looks when it starts, and about
// once a minute, by one command for all that it has, whether each task is there, and due no later than
// the next occurrence. A task that was cancelled, purged, buried, lost or put off comes back with the
// next occurrence. The handler's result and the next occurrence are reported together, in one step,
// until the server has accepted them or the lease ends.
//
// Each occurrence is handed out once, by the server's clock. It is handed out again, once its lease has
// ended, if its process died or could not report the result until then, and another process (or another
// Queue object) claims it. At most one is worked on at a time, and none piles up: the next one is the
// first after the handler has returned. Missed says what becomes of those that came while no worker ran.
//
// An error is retried after Backoff, as for any task, but not past the next occurrence. The next one
// takes its place then, as it does after a Permanent error and on the last attempt: nothing is buried,
// the log has a warning, and WorkerStats counts it as Retried. Again(d) likewise puts off the occurrence
// until the next one at most.
//
// While a deployment is under way, workers with an old and with a new list run side by side. The list of
// the Worker that started last decides when a task is due. If a Worker with another list handles an
// occurrence, the next one is by that list for a minute and a half at most. Every Worker with the task in
// its list handles what it claims, with its own Payload. A Worker without it puts it back for some
// seconds. A task that no Worker has in its list is removed ten minutes after it was due.
//
// The hooks TasksSending and TasksSent are not told of occurrences.
type Periodic struct {
	// ID is the task's: 1 to 512 bytes. Required, and different for each Periodic of a Worker.
	ID string
	// Kind is the handler's Entry.Kind, for a Mux: up to 256 bytes. Optional.
	Kind string
	// Payload is the handler's Entry.Payload: that of the worker that handles the occurrence.
	Payload []byte
	// Header is added to the handler's Entry.Header. Keys that begin with "sluice-" are the library's:
	// sluice-period has the time of the occurrence, by time.RFC3339Nano, and sluice-period-of the ID. A
	// task that a handler enqueues with its own header is not an occurrence.
	Header map[string]string
	// Schedule says when the task is due. The handler's Entry.Due is that time, on retries too. Required.
	Schedule Schedule
	// Missed says what becomes of occurrences that came while no worker ran, or all were busy. Defaults
	// to MissedLatest.
	Missed Missed
}

// Missed is what becomes of the occurrences of a Periodic that no handler has begun at their time.
type Missed int

const (
	// MissedLatest has the latest of them handled, late: Entry.Due says which it is.
	MissedLatest Missed = iota
	// MissedSkip has one handled only if it came less than a minute ago.
	MissedSkip
)

// Schedule says when a Periodic is due. The schedules of github.com/robfig/cron/v3 are of this type.
type Schedule interface {
	// Next returns the first occurrence after t, which is in UTC and by the server's clock: a schedule of
	// local times must know its time zone. The zero time, or one not after t or after 2200, means that
	// there is none; then the task ends. The same t must have the same result in all processes. Several
	// goroutines may call Next at once.
	//
	// Next may take its time, hang, panic or call runtime.Goexit: that delays its own task only. The next
	// occurrence is enqueued when Next has answered. The log says once that it does not.
	Next(t time.Time) time.Time
}

// Every returns the schedule of all multiples of d since the Unix epoch: Every(time.Hour) is each full hour in
// UTC. It is the same in all processes, whenever they start. A Worker takes 1ms or more.
func Every(d time.Duration) Schedule { return interval(d) }

type interval time.Duration

func (d interval) Next(t time.Time) time.Time {
	if d <= 0 || t.Unix() < 0 || !t.Before(lastTime) {
		return time.Time{}
	}
	past := t.UnixNano() % int64(d)
	if int64(d)-past > math.MaxInt64-t.UnixNano() {
		return time.Time{}
	}
	return t.Add(time.Duration(int64(d) - past))
}

// What the header of an occurrence has, beside the times that occurrence.times names.
const (
	headerPrefix   = "sluice-"
	headerPeriodOf = "sluice-period-of"
)

// occurrence is a time at which a periodic task is due.
type occurrence struct {
	due time.Time
	// after is the time after which due is the first of the schedule: a schedule with another Next(after)
	// is another one. (That due is one of a schedule's times would say less: a sooner one may have been
	// added, and a schedule that counts from t has other times for each t.) It is due itself, or later,
	// if the occurrence was missed; and when its handler returned, if it was handled.
	after time.Time
	// before is the due time of the last occurrence that was handled. It is due itself if this one was,
	// and it is not known yet which one is next.
	before time.Time
	list   time.Time // when the Worker started whose schedule it is of
	// unknown is when a Worker claimed it first that does not have the task in its list.
	unknown time.Time
}

// times returns the times of an occurrence, by the keys of a header that has them.
func (o *occurrence) times() map[string]*time.Time {
	return map[string]*time.Time{
		"sluice-period": &o.due, "sluice-period-after": &o.after, "sluice-period-before": &o.before,
		"sluice-period-list": &o.list, "sluice-period-unknown": &o.unknown,
	}
}

// isHandled reports whether the occurrence was handled, and only keeps the place of the next one.
func (o occurrence) isHandled() bool { return !o.due.After(o.before) }

// isMissed reports whether the occurrence was enqueued after its time.
func (o occurrence) isMissed() bool { return !o.due.After(o.after) }

// handled returns what keeps the place of the next occurrence, until it is known which one that is. An
// occurrence that was missed counts as the one that was in the queue, which is before: if the server's
// clock was ahead, those from then on are still to come.
func (o occurrence) handled(now time.Time) occurrence {
	if o.isMissed() {
		o.due = o.before
	}
	o.after, o.before = now, o.due
	return o
}

// header returns the header of the task with that ID for the occurrence.
func (o occurrence) header(id string, of map[string]string) map[string]string {
	header := make(map[string]string, len(of)+6)
	maps.Copy(header, of)
	header[headerPeriodOf] = id
	for key, at := range o.times() {
		if !at.IsZero() {
			header[key] = at.UTC().Format(time.RFC3339Nano)
		}
	}
	return header
}

// occurrenceIn returns the occurrence that the header of the task with that ID is of, and whether it is
// of one. A handler may have given its header to another task, to go on with a trace: that task is none.
func occurrenceIn(id string, header map[string]string) (o occurrence, ok bool) {
	if header[headerPeriodOf] != id {
		return o, false
	}
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
	t := p.task(o)
	return &store.Next{At: t.At, Payload: t.packed()}
}

// task returns the task that is enqueued for an occurrence.
func (p *Periodic) task(o occurrence) Task {
	return Task{ID: p.ID, Kind: p.Kind, Payload: p.Payload, Header: o.header(p.ID, p.Header), At: o.due}
}

// entry returns what the handler is given of a task that was claimed for an occurrence.
func (p *Periodic) entry(e Entry, o occurrence) Entry {
	e.Kind, e.Payload = p.Kind, bytes.Clone(p.Payload)
	e.Header = maps.Clone(e.Header)
	maps.Copy(e.Header, p.Header)
	e.Due = o.due
	return e
}

// check returns what is wrong with a Periodic.
func (p *Periodic) check() error {
	if p.Schedule == nil {
		return fmt.Errorf("%w: a Periodic without a Schedule", ErrInvalid)
	}
	if d, ok := p.Schedule.(interval); ok && (time.Duration(d) < time.Millisecond || time.Duration(d) > store.LongestDuration) {
		return fmt.Errorf("%w: Every takes 1ms to 100 years", ErrInvalid)
	}
	if p.Missed < MissedLatest || p.Missed > MissedSkip {
		return fmt.Errorf("%w: a Periodic's Missed is MissedLatest or MissedSkip", ErrInvalid)
	}
	for key := range p.Header {
		if strings.HasPrefix(key, headerPrefix) {
			return fmt.Errorf("%w: a key of a Periodic's Header begins with %s", ErrInvalid, headerPrefix)
		}
	}
	at := time.Date(2000, 1, 1, 0, 0, 0, 1, time.UTC) // as text, none is longer
	task := p.task(occurrence{at, at, at, at, at})
	return checkTask(&task)
}
