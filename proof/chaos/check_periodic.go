package main

import (
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// checkTick checks a change of a periodic task: it is due when its schedule says, is claimed no
// earlier, and is never removed, nor waits behind a lease. It is buried only if its attempts are
// used up by claims of which no worker has told the end, as those of killed workers: a Worker puts
// the next occurrence in the place of one that fails for the last time. Then it comes back with the
// next occurrence.
func (t *tasksCheck) checkTick(m *move) {
	t.counts["periodic tasks "+string(m.kind)]++
	switch m.kind {
	case claimed:
		t.checkClaim(m)
	case extended:
		t.checkLease(m)
	case added:
		t.checkScheduled(m, m.is.score)
	case replaced: // by the next one as the handler ends, or since it is due too late
		t.checkNext(m)
		t.checkScheduled(m, m.is.score)
		if m.was.leased() {
			t.checkHandled(m)
		} else if !isHandled(m.was.version) {
			t.checkPolicy(m, sluice.DuplicatesEarliest, m.is.score, m.was.score)
		}
	case retried, released:
		t.checkHandled(m)
	case buried:
		if m.was.attempt < maxAttempts || !m.was.leased() || t.early(m) {
			t.unscheduled(m)
		}
	case revived: // as it is enqueued: the clock was set back
		t.checkScheduled(m, m.is.score)
	default:
		t.unscheduled(m)
	}
}

// checkHandled checks that a lease was ended by the handler's end, or as no handler has begun, or
// had ended.
func (t *tasksCheck) checkHandled(m *move) {
	if t.early(m) && !t.neverBegun(m) {
		t.requireRequest(m, true, func(*record) bool { return false })
	}
}

// unscheduled reports a change that no periodic task may have.
func (t *tasksCheck) unscheduled(m *move) {
	t.report("the periodic task %s at %v was %s: %+v became %+v", m.id, m.span, m.kind, m.was, m.is)
}

// checkNext checks that an occurrence comes after the one whose place it takes: each is handled,
// and reported, once. One that is further away than the next can be is of a time before the clock
// was set back. One that was handled, and of which it is not known what is next, may keep its
// place.
func (t *tasksCheck) checkNext(m *move) {
	was, err := timeOf(m.was.version)
	is, _ := timeOf(m.is.version) // see checkScheduled
	if isHandled(m.is.version) && !isHandled(m.was.version) && m.was.leased() && !is.After(was) {
		t.counts["periodic tasks handled, the next not known"]++
		return
	}
	earliest, _ := t.clock.at(m.span) // it may have been set back just then
	next := earliest + periods[m.id] + time.Millisecond
	if was.Equal(is) && m.was.lease == 0 && (m.was.attempt > 0 || m.is.score < m.was.score) {
		return // a retry, or one that was put back, of which the time has not come: the clock was set back
	}
	if err == nil && !is.After(was) && time.Duration(was.UnixNano()) <= next {
		t.report("the periodic task %s was %s at %v: %s took the place of %s", m.id, m.kind, m.span, m.is.version, m.was.version)
	}
}

// checkScheduled checks that a periodic task is due when its schedule and its header say.
func (t *tasksCheck) checkScheduled(m *move, due float64) {
	const exact = 10 * time.Microsecond // of a score, and of one that was counted on so that receipts differ
	at := seconds(due)
	off := (at + exact) % periods[m.id]
	said, err := timeOf(m.is.version)
	after := m.was // it was due at that time, and follows a receipt of just then
	if after.due = float64(said.UnixMicro()) / 1e6; err == nil && after.lease != 0 && after.due != due && after.waitsFor(due) {
		return
	}
	if off > 2*exact || err != nil || (at-time.Duration(said.UnixNano())).Abs() > exact {
		t.report("the periodic task %s was %s at %v for %s, and is due at %v", m.id, m.kind, m.span, m.is.version, time.Unix(0, int64(at)).UTC())
	}
}

// isHandled says whether a version is an occurrence that was handled.
func isHandled(version string) bool { return strings.HasSuffix(version, wasHandled) }

// timeOf returns the time of the occurrence that a version is.
func timeOf(version string) (time.Time, error) {
	return time.Parse(time.RFC3339Nano, strings.TrimSuffix(version, wasHandled))
}

// checkTicks checks that at the end each periodic task is there, whole. One whose first occurrence
// was lost, or that was buried, comes back within a minute and a half, which may be after the end.
func (t *tasksCheck) checkTicks() {
	for id := range periods {
		key := taskKey{tickQueue, id}
		left := t.end.tasks[key]
		switch {
		case left.queued && left.stored && !left.dead:
		case left.buried && left.stored && left.dead && !left.queued:
			t.counts["periodic tasks buried at the end, excused"]++
		case left.there():
			t.report("the periodic task %s is half there when everything is quiet: %+v", id, left)
		case len(t.losses) > 0:
			t.counts["periodic tasks lost with the server's data, excused"]++
		case len(t.moved[key]) > 0:
			t.report("the periodic task %s is gone", id)
		}
	}
}
