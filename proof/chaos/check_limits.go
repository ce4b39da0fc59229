package main

import (
	"slices"
	"time"

	"github.com/sluice-go/sluice"
)

// reign is the time in which a queue has the same limits, and has lost no write.
type reign struct {
	queue string
	sluice.Limits
}

// limitsSet is a change of a queue's limits.
type limitsSet struct {
	span
	queue  string
	limits sluice.Limits
}

// limiting notes what an entry has changed of limits. A pause that is changed leaves the limits as
// they were.
func (r *replayer) limiting(at *entry, before map[string]*reign) {
	for queue, was := range before {
		var old, now sluice.Limits
		if was != nil {
			old = was.Limits
		}
		if is := r.limits[queue]; is != nil {
			now = is.Limits
		}
		if was != nil && old == now {
			r.limits[queue] = was
		} else if old != now {
			r.limitsSet = append(r.limitsSet, limitsSet{at.span, queue, now})
		}
	}
}

// limitedBy adds the limits of its queue to a move.
func (m move) limitedBy(k keyspace) move {
	if m.limits = k.limits[m.queue]; m.limits != nil && m.kind == claimed {
		now := m.is.score - lease.Seconds() + 2e-6 // a double is exact to a quarter of a microsecond
		for key, end := range k.leases {           // see listed: what is off the list, since the clock was ahead, does not count
			if key.queue == m.queue && end > now {
				m.leased++
			}
		}
	}
	return m
}

// newReigns begins a new reign in each queue, after writes were lost.
func (k keyspace) newReigns() {
	for queue, was := range k.limits {
		is := *was
		k.limits[queue] = &is
	}
}

// handedOut is when a task was handed out, by the server's clock, in a reign.
type handedOut struct {
	*move
	earliest, latest time.Duration
}

// checkLimits checks that limits were requested, and that no more tasks are handed out, or leased,
// than they allow.
func (t *tasksCheck) checkLimits() {
	t.checkLimitsSet()
	all := map[*reign][]handedOut{}
	add := func(m *move, earliest, latest time.Duration) {
		if m.limits != nil {
			all[m.limits] = append(all[m.limits], handedOut{m, earliest, latest})
		}
	}
	for i := range t.moves {
		if m := &t.moves[i]; m.kind == claimed { // the score says when, to the microsecond
			at := seconds(m.is.score) - lease
			add(m, at, at)
			t.checkRunning(m)
		} else if t.popped[m] {
			earliest, latest := t.clock.at(m.span)
			add(m, earliest, latest)
		}
	}
	for of, tasks := range all {
		t.checkRate(of, tasks)
	}
}

// checkRate checks that no more tasks are handed out in a Per than Rate and Burst together. In
// between the clock may not have been set.
func (t *tasksCheck) checkRate(of *reign, tasks []handedOut) {
	if of.Rate == 0 {
		return
	}
	t.counts["tasks handed out by a rate"] += len(tasks)
	n := of.Rate + of.Burst
	for i := n; i < len(tasks); i++ {
		first, last := tasks[i-n], tasks[i]
		if t.clock.set(first.after, last.before) {
			t.counts["windows in which the clock was set"]++
			continue
		}
		t.counts["windows of a rate"]++
		if took := last.latest - first.earliest; took <= of.Per {
			t.report("%d tasks of %s were handed out in %v, until %v: the limits are %+v", n+1, of.queue, took, last.span, of.Limits)
		}
	}
}

// checkRunning checks that no more tasks are leased after a claim than may be.
func (t *tasksCheck) checkRunning(m *move) {
	if m.limits == nil || m.limits.Running == 0 {
		return
	}
	t.counts["tasks claimed of those that may be leased"]++
	if m.leased > m.limits.Running {
		t.report("%v was claimed at %v, and %d are leased: the limits are %+v", m.taskKey, m.span, m.leased, m.limits.Limits)
	}
	if m.leased == m.limits.Running {
		t.counts["tasks claimed that were the last that may be leased"]++
	}
}

// checkLimitsSet checks that the log has all limits that were acknowledged, and none that no client
// has requested.
func (t *tasksCheck) checkLimitsSet() {
	for _, r := range t.records {
		if r.Op != opSetLimits || r.Result != done || t.inGap(r.Call, r.Return) {
			continue
		}
		made := func(s limitsSet) bool { return s.queue == r.Name && s.limits == r.Limits && s.meets(r.Call, r.Return) }
		if !slices.ContainsFunc(t.limitsSet, made) && !t.hadLimits(r) {
			t.report("SetLimits of %s to %+v by %s returned nil at %v, and the log does not have it", r.Name, r.Limits, r.Process, r.Return)
		}
	}
	for _, s := range t.limitsSet {
		t.counts["limits set"]++
		wanted := func(r record) bool {
			return r.Op == opSetLimits && r.Name == s.queue && r.Limits == s.limits && r.Call <= s.before && r.mayHaveRun()
		}
		isCleared := t.cleared != 0 && s.before >= t.cleared && s.limits == sluice.Limits{}
		if !isCleared && !slices.ContainsFunc(t.records, wanted) {
			t.report("%s got the limits %+v at %v, and no client requested them", s.queue, s.limits, s.span)
		}
	}
}

// hadLimits says whether a queue may have had the limits before that a client gave it.
func (t *tasksCheck) hadLimits(r record) bool {
	had := r.Limits == sluice.Limits{}
	for _, s := range t.limitsSet {
		if s.queue != r.Name || s.after > r.Return {
			continue
		}
		had = s.limits == r.Limits || had && s.before >= r.Call
	}
	return had || t.lostData(0, r.Return)
}
