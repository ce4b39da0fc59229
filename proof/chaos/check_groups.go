package main

import (
	"cmp"
	"slices"
)

// checkGroups checks the groups. In the log, after each entry, no more are in play than may be,
// none waits while a place is free, the earliest are in play, and each that waits is whole: see
// turned.
// Those who have tasks of one group do not have them at the same time, where one may be in play.
// When everything is quiet, nothing is in play, and nothing waits.
func (t *tasksCheck) checkGroups() {
	for _, fault := range t.groupLog.faults {
		t.report("%s", fault)
	}
	t.counts.add(t.groupLog.counts)
	for i := range t.groupLog.left {
		t.checkLeft(&t.groupLog.left[i])
	}
	t.checkTurns()
	for key, g := range t.end.groups {
		t.report("the group %v has %d in play and %d that wait when everything is quiet", key, len(g.inPlay), len(g.waiting))
	}
}

// checkGroup checks what a change of a task means for its group: it is in the one that its enqueue
// asked for, until it ends.
func (t *tasksCheck) checkGroup(m *move) {
	had, has := m.was.group, m.is.group
	if had != "" || has != "" {
		t.counts["groups: tasks "+string(m.kind)]++
	}
	switch {
	case m.kind == removed, m.kind == deadRemoved:
	case m.kind == added:
		if r := t.enqueued[m.is.version]; r != nil && has != r.Group {
			t.report("%v at %v was added in the group %q, and %s asked for %q", m.taskKey, m.span, has, r.Process, r.Group)
		}
		if m.is.waits != 0 {
			t.counts["groups: tasks added that wait"]++
		}
		if m.is.units.n > 0 && has != "" {
			t.counts["groups: tasks added that hold units"]++
		}
	case had != has:
		t.report("%v at %v was %s in the group %q, and was in %q", m.taskKey, m.span, m.kind, has, had)
	case m.kind == claimed && m.was.waits != 0:
		t.counts["groups: tasks put into play and claimed by one script"]++
	}
}

// checkLeft checks that a task which is in play and no longer in the queue was finished by one who
// did not know that it is in a group.
func (t *tasksCheck) checkLeft(m *move) {
	byStranger := func(r *record) bool {
		return r.Stranger && (ends(m, opDequeue)(r) || m.was.due != 0 && m.was.waitsFor(r.Score))
	}
	if !t.isRequested(m, byStranger) {
		t.report("%v at %v was %s, and its group %q is held up: %+v became %+v", m.taskKey, m.span, m.kind, m.was.group, m.was, m.is)
		return
	}
	t.counts["groups: places that strangers have kept"]++
}

// groupTenure is the time in which a caller had a task of a group, by the caller's clock.
type groupTenure struct {
	span
	claim *move
	place int // of the claim in the log
	of    *record
}

// checkTurns checks that no two callers have tasks of one group at the same time, if only one of
// them was in play when the later one was claimed; and that they are told the group.
func (t *tasksCheck) checkTurns() {
	turns, had := map[groupKey][]groupTenure{}, map[receipt]*record{}
	for i := range t.records {
		if r := &t.records[i]; r.Op == opDelivery || r.Op == opHandle {
			had[receipt{taskKey{r.Name, r.ID}, r.Delivery}] = r
		}
	}
	for i := range t.moves {
		m := &t.moves[i]
		r := had[receipt{m.taskKey, m.is.score}]
		if m.kind != claimed || r == nil {
			continue
		}
		if r.Group != m.is.group {
			t.report("%v was claimed at %v in the group %q, and %s was told %q", m.taskKey, m.span, m.is.group, r.Process, r.Group)
		}
		if m.is.group != "" {
			key := groupKey{m.queue, m.is.group}
			turns[key] = append(turns[key], groupTenure{t.had(m, r), m, i, r})
		}
	}
	for key, all := range turns {
		t.checkTurnsOf(key, all)
	}
}

// had returns the time in which a caller had a task, at least: until it began to settle it, or its
// lease ended.
func (t *tasksCheck) had(m *move, r *record) span {
	s := span{r.Call, r.Until}
	if r.Op == opDelivery {
		s = span{r.Return, r.Call + lease}
	}
	until := m.is.score
	for _, o := range t.extensions[receipt{m.taskKey, m.is.score}] {
		until = max(until, o.is.score)
	}
	s.before = min(s.before, t.clock.reaches(seconds(until), m.after).after)
	for _, o := range t.ops[m.taskKey] {
		if o.Delivery == r.Delivery && o != r && o.Op != opExtend {
			s.before = min(s.before, o.Call)
		}
	}
	return s
}

// checkTurnsOf is checkTurns of one group.
func (t *tasksCheck) checkTurnsOf(key groupKey, all []groupTenure) {
	slices.SortFunc(all, func(a, b groupTenure) int { return cmp.Compare(a.after, b.after) })
	var under []groupTenure // under way
	for _, s := range all {
		under = slices.DeleteFunc(under, func(o groupTenure) bool { return o.before <= s.after })
		for _, o := range under {
			first, second := o, s
			if first.place > second.place {
				first, second = second, first
			}
			if first.claim.taskKey == second.claim.taskKey || second.claim.inPlay > 1 || s.before <= s.after { // see checkOverlaps
				continue
			}
			if !t.mayShare(first, second) {
				t.report("%v and %v of the group %v were handled at once: %v by %s and %v by %s", first.claim.id, second.claim.id, key,
					first.span, first.of.Process, second.span, second.of.Process)
			}
		}
		if s.before > s.after {
			under = append(under, s)
			t.counts["groups: turns"]++
			if s.claim.inPlay > 1 {
				t.counts["groups: turns beside others"]++
			}
		}
	}
}

// mayShare says whether the next of a group may be handled although the one before is: the server
// was unreliable, or another client has ended that one, of which its holder learns later.
func (t *tasksCheck) mayShare(first, second groupTenure) bool {
	ended := func(r *record) bool {
		return (r.Op == opCancel || r.Op == opDequeue && r.Delivery != first.of.Delivery) && r.mayHaveRun() &&
			r.Call <= second.claim.before && (r.Return == 0 || r.Result == unknown || r.Return >= first.claim.after) // what has no reply may run later
	}
	from := min(first.claim.after, second.claim.after)
	if t.unreliable(from, max(first.before, second.before)) {
		t.counts["groups: turns at once on an unreliable server, excused"]++
		return true
	}
	if slices.ContainsFunc(t.ops[first.claim.taskKey], ended) {
		t.counts["groups: turns at once since one was cancelled, excused"]++
		return true
	}
	return false
}

// groupCounts are what a run must have seen of groups.
var groupCounts = []string{"groups: tasks added", "groups: tasks added that wait", "groups: tasks added that hold units", "groups: tasks put into play", "groups: tasks put back to wait",
	"groups: tasks put into play and claimed by one script", "groups: tasks replaced", "groups: tasks rescheduled", "groups: tasks given back",
	"groups: tasks buried", "groups: tasks revived", "groups: tasks removed", "groups: turns", "groups: turns beside others",
	"groups: changes while several are in play", "groups: places that strangers have kept"}
