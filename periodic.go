package sluice

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"sync/atomic"
	"time"
)

// Periodic is work that is due again and again. Give the same list to the Workers of all processes: each
// occurrence of the schedule is handed to one of them.
//
// It is an ordinary task, with the next occurrence as its due time: Get, List, Cancel, hooks and the log know
// it by its ID, which must not be used for anything else. A Worker enqueues it when it starts, and looks about
// once a minute whether it is still there: one that was cancelled, purged, buried or lost comes back with the
// next occurrence. The next occurrence is enqueued when the handler has returned, before its result is
// reported.
//
// Each occurrence is handed out once, by the server's clock; again if its process dies before the next one is
// enqueued, once the lease has ended. At most one is worked on at a time, and none piles up: while one is late,
// because its handler takes long or no worker runs, those after it are skipped, and then the next one that is
// in the future follows.
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
	// Payload is the handler's Entry.Payload: that of the worker that handles the occurrence.
	Payload []byte
	// Header is added to the handler's Entry.Header. Keys that begin with "sluice-" are the library's:
	// sluice-period has the time of the occurrence, by time.RFC3339Nano, sluice-period-after the time after which
	// it is the first, and sluice-period-of the ID. A task that a handler enqueues with its own header is not an occurrence.
	Header map[string]string
	// Schedule says when the task is due. The handler's Entry.Due is that time, on retries too. Required.
	Schedule Schedule
}

// Schedule says when a Periodic is due. The schedules of github.com/robfig/cron/v3 are of this type.
type Schedule interface {
	// Next returns the first occurrence after t, which is in UTC and by the server's clock: a schedule of
	// local times must know its time zone. The zero time, or one not after t or after 2200, means that there
	// is none; then the task ends. The same t must have the same result in all processes. Next is called by
	// several goroutines at once. A panic counts as none.
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
	headerPrefix      = "sluice-"
	headerPeriod      = "sluice-period"
	headerPeriodAfter = "sluice-period-after"
	headerPeriodOf    = "sluice-period-of"
)

// occurrence is a time at which a periodic task is due: the first of its schedule after a time. That one is kept too: a
// schedule to which Next(after) is another time has been changed. (That due itself is one of the schedule's would say
// less: a sooner one may have been added. And of a schedule that counts from t, each t has another.)
type occurrence struct{ after, due time.Time }

// header returns the header of the task with that ID for the occurrence.
func (o occurrence) header(id string, of map[string]string) map[string]string {
	header := make(map[string]string, len(of)+3)
	maps.Copy(header, of)
	header[headerPeriod] = o.due.UTC().Format(time.RFC3339Nano)
	header[headerPeriodAfter] = o.after.UTC().Format(time.RFC3339Nano)
	header[headerPeriodOf] = id
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
	return o, err == nil && failed == nil
}

// periodicTask is a Periodic of a worker's.
type periodicTask struct {
	Periodic
	clock serverClock
}

// next returns the first occurrence after a time, and whether there is one.
func (p *periodicTask) next(after time.Time) (o occurrence, ok bool) {
	defer func() {
		if recover() != nil {
			o, ok = occurrence{}, false
		}
	}()
	o = occurrence{after.UTC(), p.Schedule.Next(after.UTC())}
	return o, o.due.After(after) && !o.due.After(lastTime)
}

// has reports whether an occurrence is one of the present schedule.
func (p *periodicTask) has(o occurrence) bool {
	own, ok := p.next(o.after)
	return ok && own.due.Equal(o.due)
}

// dueFor returns when the task is due for an occurrence that is in the queue: then or, if it is another
// schedule's, at the first of the present one from then on.
func (p *periodicTask) dueFor(o occurrence) (due time.Time, ok bool) {
	if p.has(o) {
		return o.due, true
	}
	own, ok := p.next(o.due.Add(-1))
	return own.due, ok
}

// task returns the task that is enqueued for an occurrence.
func (p *periodicTask) task(o occurrence) Task {
	return Task{ID: p.ID, Payload: p.Payload, Header: o.header(p.ID, p.Header), At: o.due}
}

// entry returns what the handler is given of a task that was claimed for the occurrence at due.
func (p *periodicTask) entry(e Entry, due time.Time) Entry {
	e.Payload = bytes.Clone(p.Payload)
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
func (p *Periodic) check(q *Queue) error {
	if p.Schedule == nil {
		return fmt.Errorf("%w: a Periodic without a Schedule", ErrInvalid)
	}
	if d, ok := p.Schedule.(interval); ok && (time.Duration(d) < time.Millisecond || time.Duration(d) > longest) {
		return fmt.Errorf("%w: Every takes 1ms to 100 years", ErrInvalid)
	}
	for key := range p.Header {
		if len(key) >= len(headerPrefix) && key[:len(headerPrefix)] == headerPrefix {
			return fmt.Errorf("%w: a key of a Periodic's Header begins with %s", ErrInvalid, headerPrefix)
		}
	}
	longestTime := time.Date(2000, 1, 1, 0, 0, 0, 1, time.UTC)
	task := Task{ID: p.ID, Payload: p.Payload, Header: occurrence{longestTime, longestTime}.header(p.ID, p.Header)}
	return q.checkTask(&task)
}
