package sluice

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/store"
)

// Periodic is work that is due again and again. Give the same list to the Workers of all processes: each
// occurrence of the schedule is handed to one of them.
//
// It is an ordinary task, with the next occurrence as its due time: Get, List, Cancel, hooks and the log know
// it by its ID, which must not be used for anything else. A Worker enqueues it when it starts, and looks about
// once a minute whether it is still there, and due no later than the next occurrence: one that was cancelled,
// purged, buried, lost or put off comes back with the next occurrence. The handler's result and the next
// occurrence are reported together, in one step, until the server has accepted them or the lease ends.
//
// Each occurrence is handed out once, by the server's clock; again, once its lease has ended, if its process died
// or could not report the result until then, and it is handed to another process (or to another Queue object). At
// most one is worked on at a time, and none piles up: the next one is the first after the handler has returned, and
// those before that are skipped.
//
// An error is retried after Backoff, as for any task, but not past the next occurrence. That takes its
// place instead, as it does after a Permanent error and on the last attempt: nothing is buried, the log has a
// warning, and WorkerStats counts it as Retried. Again(d) likewise puts off the occurrence until the next one at most.
//
// A changed Schedule takes effect when a worker with it starts: the task is moved if the next occurrence is now
// sooner; one that is not of the present schedule is not handled. While a deployment is under way, and some
// workers have the old list and some the new one, each handles the occurrences of its own schedules and puts
// back the others for some seconds. What no worker has in its list any more is put back for ten minutes, and
// then removed.
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
	// sluice-period has the time of the occurrence, by time.RFC3339Nano, sluice-period-after the time after which
	// it is the first, sluice-period-before the one that was handled before, and sluice-period-of the ID. A task that a
	// handler enqueues with its own header is not an occurrence.
	Header map[string]string
	// Schedule says when the task is due. The handler's Entry.Due is that time, on retries too. Required.
	Schedule Schedule
}

// Schedule says when a Periodic is due. The schedules of github.com/robfig/cron/v3 are of this type.
type Schedule interface {
	// Next returns the first occurrence after t, which is in UTC and by the server's clock: a schedule of
	// local times must know its time zone. The zero time, or one not after t or after 2200, means that there
	// is none; then the task ends. The same t must have the same result in all processes. Next is called by
	// several goroutines at once.
	//
	// If Next panics, calls runtime.Goexit or does not return within three seconds, no other task is harmed: an
	// occurrence that is due is put back for some seconds. One whose handler has returned is the last, and the task comes
	// back when Next answers again. The log says so.
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

// The keys of the header of an occurrence.
const (
	headerPrefix       = "sluice-"
	headerPeriod       = "sluice-period"
	headerPeriodAfter  = "sluice-period-after"
	headerPeriodBefore = "sluice-period-before"
	headerPeriodOf     = "sluice-period-of"
)

// occurrence is a time at which a periodic task is due: the first of its schedule after a time. That one is kept too: a
// schedule to which Next(after) is another time has been changed. (That due itself is one of the schedule's would say
// less: a sooner one may have been added. And of a schedule that counts from t, each t has another.)
type occurrence struct {
	after, due time.Time
	before     time.Time // the occurrence that was handled last; zero if there was none
}

// is reports whether both are the same occurrence: also whether they were enqueued at the same time, since an operator
// may have one of them run early, which is then due once more.
func (o occurrence) is(other occurrence) bool {
	return o.after.Equal(other.after) && o.due.Equal(other.due)
}

// header returns the header of the task with that ID for the occurrence.
func (o occurrence) header(id string, of map[string]string) map[string]string {
	header := make(map[string]string, len(of)+4)
	maps.Copy(header, of)
	header[headerPeriod] = o.due.UTC().Format(time.RFC3339Nano)
	header[headerPeriodAfter] = o.after.UTC().Format(time.RFC3339Nano)
	header[headerPeriodOf] = id
	if !o.before.IsZero() {
		header[headerPeriodBefore] = o.before.UTC().Format(time.RFC3339Nano)
	}
	return header
}

// occurrenceIn returns the occurrence that the header of the task with that ID is of, and whether it is of one. A handler
// may have given its header to another task, to go on with a trace: that task is none.
func occurrenceIn(id string, header map[string]string) (o occurrence, ok bool) {
	due, ok := header[headerPeriod]
	if !ok || header[headerPeriodOf] != id {
		return o, false
	}
	var err, failed error
	o.due, err = time.Parse(time.RFC3339Nano, due)
	o.after, failed = time.Parse(time.RFC3339Nano, header[headerPeriodAfter])
	o.before, _ = time.Parse(time.RFC3339Nano, header[headerPeriodBefore])
	return o, err == nil && failed == nil
}

// periodicTask is a Periodic of a worker's.
type periodicTask struct {
	Periodic
	clock   serverClock
	hanging atomic.Int64 // calls of Schedule.Next that were given up and have not returned
}

// schedulePatience is how long Schedule.Next is waited for.
const schedulePatience = 3 * time.Second

var (
	// errNoOccurrence says that a schedule has come to its end.
	errNoOccurrence = errors.New("the schedule has come to its end")
	// errNoAnswer says that a schedule did not say, and may the next time.
	errNoAnswer = errors.New("Schedule.Next gives no answer")
	errHangs    = fmt.Errorf("%w: it does not return", errNoAnswer)
)

// next returns the first occurrence after a time; context.Canceled once stop is closed. Schedule.Next is our user's: it may hang,
// panic, or end its goroutine, for which next waits for schedulePatience.
func (p *periodicTask) next(stop <-chan struct{}, after time.Time) (occurrence, error) {
	if p.hanging.Load() > 0 {
		return occurrence{}, errHangs
	}
	o, err := occurrence{after: after.UTC()}, fmt.Errorf("%w: it called runtime.Goexit", errNoAnswer)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil { // its value may be a secret
				err = fmt.Errorf("%w: it panicked: %T", errNoAnswer, v)
			}
		}()
		o.due = p.Schedule.Next(o.after)
		err = nil
	}()
	for range 10 { // in steps: a process that was stopped for long has waited for one of them only
		select {
		case <-done:
			if err == nil && (!o.due.After(after) || o.due.After(lastTime)) {
				err = errNoOccurrence
			}
			return o, err
		case <-stop:
			return occurrence{}, context.Canceled
		case <-time.After(schedulePatience / 10):
		}
	}
	p.hanging.Add(1)
	// It ends when Schedule.Next has returned; nothing waits for it.
	go func() {
		<-done
		p.hanging.Add(-1)
	}()
	return occurrence{}, errHangs
}

// dueFor returns when the task is due for an occurrence that is in the queue: then or, if it is another
// schedule's, at the first of the present one from then on.
func (p *periodicTask) dueFor(o occurrence) (time.Time, error) {
	own, err := p.next(nil, o.after)
	switch {
	case err == nil && own.due.Equal(o.due):
		return o.due, nil
	case err == nil || errors.Is(err, errNoOccurrence):
		own, err = p.next(nil, o.due.Add(-1))
	}
	return own.due, err
}

// task returns the task that is enqueued for an occurrence.
func (p *periodicTask) task(o occurrence) Task {
	return Task{ID: p.ID, Kind: p.Kind, Payload: p.Payload, Header: o.header(p.ID, p.Header), At: o.due}
}

// nextOf returns what takes a task's place for an occurrence.
func (p *periodicTask) nextOf(o occurrence) *store.Next {
	t := p.task(o)
	return &store.Next{At: t.At, Payload: t.packed()}
}

// entry returns what the handler is given of a task that was claimed for the occurrence at due.
func (p *periodicTask) entry(e Entry, due time.Time) Entry {
	e.Kind, e.Payload = p.Kind, bytes.Clone(p.Payload)
	e.Header = maps.Clone(e.Header)
	maps.Copy(e.Header, p.Header)
	e.Due = due
	return e
}

// serverClock is what is known of the clock of a server: its time at a time of ours. The server's time is
// read with something else, which takes its time: so what now returns may be a little past, and is never ahead.
type serverClock struct{ read atomic.Pointer[clockReading] }

type clockReading struct{ server, local time.Time }

func (c *serverClock) set(server time.Time) { c.read.Store(&clockReading{server, time.Now()}) }

// now returns the server's time. It was set before.
func (c *serverClock) now() time.Time {
	r := c.read.Load()
	return r.server.Add(time.Since(r.local))
}

// check returns what is wrong with a Periodic.
func (p *Periodic) check() error {
	if p.Schedule == nil {
		return fmt.Errorf("%w: a Periodic without a Schedule", ErrInvalid)
	}
	if d, ok := p.Schedule.(interval); ok && (time.Duration(d) < time.Millisecond || time.Duration(d) > store.LongestDuration) {
		return fmt.Errorf("%w: Every takes 1ms to 100 years", ErrInvalid)
	}
	for key := range p.Header {
		if len(key) >= len(headerPrefix) && key[:len(headerPrefix)] == headerPrefix {
			return fmt.Errorf("%w: a key of a Periodic's Header begins with %s", ErrInvalid, headerPrefix)
		}
	}
	longestTime := time.Date(2000, 1, 1, 0, 0, 0, 1, time.UTC)
	task := Task{ID: p.ID, Kind: p.Kind, Payload: p.Payload, Header: occurrence{longestTime, longestTime, longestTime}.header(p.ID, p.Header)}
	return checkTask(&task)
}
