package main

import "slices"

// idKinds has the changes that an operation by ID makes, if it returns true.
var idKinds = map[op][]moveKind{
	opCancel:     {removed, deadRemoved},
	opReschedule: {rescheduled, retried},
	opRevive:     {revived},
	opDrop:       {deadRemoved},
}

// checkByID checks that Cancel, Reschedule, Revive and Drop return true only if they changed
// something.
func (t *tasksCheck) checkByID() {
	for i := range t.records {
		r := &t.records[i]
		kinds, ok := idKinds[r.Op]
		if !ok || r.Result != done {
			continue
		}
		found := slices.ContainsFunc(t.moved[taskKey{r.Name, r.ID}], func(m *move) bool {
			return slices.Contains(kinds, m.kind) && m.meets(r.Call, r.Return)
		})
		if !found && !t.inGap(r.Call, r.Return) {
			t.report("%s of %s on %s returned true at %v, and the log has no such change", r.Op, r.ID, r.Name, r.Return)
		}
	}
}

// checkLeftovers checks that at the end only complete dead letters are left.
func (t *tasksCheck) checkLeftovers() {
	for key, left := range t.end.tasks {
		switch {
		case key.queue == tickQueue: // see checkTicks
		case key.queue == safeQueue && left.queued && left.stored: // no client consumes it
		case left.queued:
			t.report("%v is still there when everything is quiet: %+v", key, left)
		case !left.dead || !left.kept || !left.buried || left.stored != (key.queue != plainQueue):
			t.report("%v is half there when everything is quiet: %+v", key, left)
		default:
			t.counts["dead letters at the end"]++
		}
	}
}
