package main

import (
	"slices"
	"time"
)

// checkReplicas checks that whenever the server was killed, its replica had what the server had
// acknowledged since its last start, and some seconds: the tasks of the queue "safe", and the locks
// of that name which were held.
func (t *tasksCheck) checkReplicas() {
	up := time.Duration(0)
	for _, k := range t.restarts {
		if k.found == nil {
			t.counts["kills at which the replica was loading"]++
		} else {
			t.checkReplica(k, up)
		}
		up = k.up + syncing
	}
	for _, r := range t.records {
		if r.Result == short {
			t.counts[underReplicated]++
		}
	}
}

const underReplicated = "operations with too few replicas"

// syncing is how long after a start of the server its replica may be about to get a copy of the
// data. Redis counts a replica as soon as it was sent the copy, for all that was written before
// there was a backlog, although it may not have loaded it.
const syncing = 3 * time.Second

// checkReplica checks what a replica had when the server was killed, which had run since up.
func (t *tasksCheck) checkReplica(k restart, up time.Duration) {
	for i := range t.records {
		r := &t.records[i]
		acknowledged := r.Return
		if r.Op == opHold {
			acknowledged = r.Got
		}
		switch {
		case !isSafe(r.Name) || r.Call < up || acknowledged == 0 || acknowledged > k.killed.after:
		case r.Op == opEnqueue && r.Result == done:
			t.counts["tasks looked for on a replica"]++
			if !k.found.versions[r.Version] {
				t.report("%s was acknowledged at %v with a replica, and is not there when the server is killed at %v", r.Version, r.Return, k.killed)
			}
		case r.Op == opHold && r.Token != 0 && !r.Adopted && t.heldAt(r, k.found.before):
			t.counts["locks looked for on a replica"]++
			if k.found.tokens[r.Name] != r.Token {
				t.report("%s held %s (seq %d) from %v with a replica, which does not have it when the server is killed at %v", r.Process, r.Name, r.Seq, r.Got, k.killed)
			}
		}
	}
}

// heldAt says whether a lock was held until then, by its holder's clock, and not yet released.
func (t *tasksCheck) heldAt(r *record, until time.Duration) bool {
	const margin = 10 * time.Millisecond
	released := func(o record) bool {
		return o.Process == r.Process && (o.Op == opUnlockAll || o.Op == opFinal) && o.Call <= until && (o.Return == 0 || o.Return >= r.Got)
	}
	_, ended := t.clock.setAhead(r.Call, until)
	return r.From != 0 && r.Deadline > until+margin && (r.Unlock == 0 || r.Unlock > until) && !ended &&
		!slices.ContainsFunc(t.records, released)
}
