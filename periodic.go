package sluice

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/queues"
	"github.com/sluice-go/sluice/internal/store"
)

// Periodic is work that is due again and again. Give the same list to the Workers of all processes:
// each occurrence of the schedule is handed to one of them.
//
// It is an ordinary task, with the next occurrence as its due time: Get, List, Cancel, hooks and
// the log know it by its ID, which must not be used for anything else: another task with that ID
// takes its place, and the log has a warning. A Worker looks when it starts, and about once a
// minute, by one command for all that it has, whether each task is there, and due no later than the
// next occurrence. A task that was cancelled, purged, buried, lost or put off comes back within
// about 90 seconds, with the first occurrence after that. The handler's result and the next
// occurrence are reported together, in one step, until the server has accepted them or the lease
// ends.
//
// Each occurrence is handed out once, by the server's clock. It is handed out again, once its lease
// has ended, if its process died or could not report the result until then, and another process (or
// another Queue object) claims it. At most one is worked on at a time, and none piles up: the next
// one is the first after the handler has returned. Missed says what becomes of those that came
// while no worker ran.
//
// An error is retried after Backoff, as for any task, but not past the next occurrence. The next
// one takes its place then, as it does after a Permanent error and on the last attempt: nothing is
// buried, the log has a warning, and WorkerStats counts it as Retried. Again(d) likewise puts off
// the occurrence until the next one at most, and Discard ends it.
//
// While a deployment is under way, workers with an old and with a new list run side by side. The
// list of the Worker that started last decides when a task is due. To go back to an older list,
// start a Worker with it: else the occurrence that is planned is waited for. If a Worker with
// another list handles an occurrence, the next one is by that list for a minute and a half at
// most. Every Worker with the task in its list handles what it claims, with its own Payload. A
// Worker without it puts it back for some seconds. A task that no Worker has in its list is
// removed ten minutes after it was due.
//
// The hooks TasksSending and TasksSent are not told of occurrences.
type Periodic struct {
	// ID is the task's: 1 to 512 bytes. Required, and different for each Periodic of a Worker, and
	// of the Workers that a Pool has on one queue.
	ID string
	// Kind is the handler's Entry.Kind, for a Mux: up to 256 bytes. Optional.
	Kind string
	// Payload is the handler's Entry.Payload: that of the worker that handles the occurrence.
	Payload []byte
	// Header is added to the handler's Entry.Header. Keys that begin with "sluice-" are the
	// library's: sluice-period has the time of the occurrence, by time.RFC3339Nano, and
	// sluice-period-of the ID. A task that a handler enqueues with its own header is not an
	// occurrence.
	Header map[string]string
	// Schedule says when the task is due. The handler's Entry.Due is that time, on retries too.
	// Required.
	Schedule Schedule
	// Missed says what becomes of occurrences that came while no worker ran, or all were busy.
	// Defaults to MissedLatest.
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

// Schedule says when a Periodic is due. The schedules of github.com/robfig/cron/v3 are of this
// type.
type Schedule interface {
	// Next returns the first occurrence after t, which is in UTC and by the server's clock: a
	// schedule of local times must know its time zone. The zero time, or one not after t or after
	// 2200, means that there is none; then the task ends. The same t must have the same result in
	// all processes. Several goroutines may call Next at once.
	//
	// Next may take its time, hang, panic or call runtime.Goexit: that delays its own task only.
	// The next occurrence is enqueued when Next has answered. The log says once that it does not.
	Next(t time.Time) time.Time
}

// Every returns the schedule of all multiples of d since the Unix epoch: Every(time.Hour) is each
// full hour in UTC. It is the same in all processes, whenever they start. A Worker takes 1ms or
// more.
func Every(d time.Duration) Schedule { return interval(d) }

type interval time.Duration

func (d interval) Next(t time.Time) time.Time {
	if d <= 0 || t.Unix() < 0 || !t.Before(store.LastTime) {
		return time.Time{}
	}
	past := t.UnixNano() % int64(d)
	if int64(d)-past > math.MaxInt64-t.UnixNano() {
		return time.Time{}
	}
	return t.Add(time.Duration(int64(d) - past))
}

// Daily returns the schedule of a time of the day, by the clocks of a place: once on each of its
// days, also on those on which its clocks change. Daily(2, 30, newYork) is half past two in New
// York. A nil loc is UTC. A Worker takes an hour of 0 to 23 and a minute of 0 to 59.
//
// A time that a day does not have, since the clocks are set ahead over it, is the moment at which
// they are; one that a day has twice is the first. A day that a place has left out has none.
func Daily(hour, minute int, loc *time.Location) Schedule {
	if loc == nil {
		loc = time.UTC
	}
	return daily{hour, minute, loc}
}

type daily struct {
	hour, minute int
	loc          *time.Location
}

func (s daily) Next(t time.Time) time.Time {
	const most = 7 // days, of which a place leaves out one at a time
	y, m, d := t.In(s.loc).Date()
	for i := -1; i < most; i++ {
		day := time.Date(y, m, d+i, 0, 0, 0, 0, time.UTC)
		if at := s.on(day.Date()); at.After(t) {
			return at
		}
	}
	return time.Time{}
}

// on returns the first moment at which the clocks show the time on a day, or a later one, or zero if
// the place does not have that day.
func (s daily) on(y int, m time.Month, d int) time.Time {
	wanted := time.Date(y, m, d, s.hour, s.minute, 0, 0, time.UTC) // as the clocks show it
	for at := wanted.Add(-36 * time.Hour).In(s.loc); ; {
		from, until := at.ZoneBounds() // between which the clocks are not changed
		_, ahead := at.Zone()
		first := backoff.Later(wanted.Add(-time.Duration(ahead)*time.Second), from).In(s.loc)
		if until.IsZero() || first.Before(until) {
			if first.Day() != d && first.Add(-1).Day() != d {
				return time.Time{}
			}
			return first
		}
		at = until
	}
}

// periodicsOf returns Periodics as the engine has them, or what is wrong with one.
func periodicsOf(all []Periodic) ([]queues.Periodic, error) {
	periodics, taken := make([]queues.Periodic, len(all)), map[string]bool{}
	for i := range all {
		p := &all[i]
		periodics[i] = queues.Periodic{
			ID: p.ID, Kind: p.Kind, Payload: p.Payload, Header: p.Header, Schedule: p.Schedule, SkipsMissed: p.Missed == MissedSkip,
		}
		d := periodics[i].Longest()
		longest := Task{ID: d.ID, Kind: d.Kind, Payload: d.Payload, Header: d.Header, At: d.At}
		if err := cmp.Or(p.check(), checkTask(&longest, false)); err != nil {
			return nil, fmt.Errorf("in Periodic[%d]: %w", i, err)
		}
		if taken[p.ID] {
			return nil, fmt.Errorf("in Periodic[%d]: %w: another one has its ID", i, ErrInvalid)
		}
		taken[p.ID] = true
	}
	return periodics, nil
}

// check returns what is wrong with a Periodic, beside its tasks.
func (p *Periodic) check() error {
	if p.Schedule == nil {
		return fmt.Errorf("%w: Schedule is nil", ErrInvalid)
	}
	if d, ok := p.Schedule.(interval); ok && (time.Duration(d) < time.Millisecond || time.Duration(d) > store.LongestDuration) {
		return fmt.Errorf("%w: Schedule: Every takes 1ms to 100 years", ErrInvalid)
	}
	if d, ok := p.Schedule.(daily); ok && (d.hour < 0 || d.hour > 23 || d.minute < 0 || d.minute > 59) {
		return fmt.Errorf("%w: Schedule: Daily takes an hour of 0 to 23 and a minute of 0 to 59", ErrInvalid)
	}
	if p.Missed < MissedLatest || p.Missed > MissedSkip {
		return fmt.Errorf("%w: Missed is MissedLatest or MissedSkip", ErrInvalid)
	}
	for key := range p.Header {
		if strings.HasPrefix(key, queues.HeaderPrefix) {
			return fmt.Errorf("%w: a key of Header begins with %s", ErrInvalid, queues.HeaderPrefix)
		}
	}
	return nil
}
