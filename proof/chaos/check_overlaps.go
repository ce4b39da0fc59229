package main

import (
	"slices"
	"time"
)

// tenure is the time in which a caller held a task, by the caller's clock.
type tenure struct {
	from, to time.Duration
	claim    *move
}

// checkOverlaps checks that no other caller holds a task during a lease, by the clocks of the
// callers.
func (t *tasksCheck) checkOverlaps() {
	for key, ops := range t.ops {
		var last tenure
		for _, r := range ops { // sorted by their calls
			claims := t.claims[receipt{key, r.Delivery}]
			if r.Op != opDelivery || len(claims) == 0 {
				continue
			}
			s := tenure{r.Return, r.Call + lease, claims[0]}
			for _, other := range ops {
				if other.Delivery == r.Delivery && other.Op != opDelivery {
					s.to = min(s.to, other.Call) // the caller has begun to settle it
				}
			}
			if last.claim != nil && s.from < last.to && last.from < s.to && !t.mayOverlap(last, s) {
				t.report("%v was held twice at once: claimed at %v and %v, each for %v", key, last.claim.span, s.claim.span, lease)
			}
			if s.to > last.to {
				last = s
			}
		}
	}
}

// mayOverlap says whether two callers may hold a task at once: the server was unreliable, or
// the task was cancelled, and the first holder will learn that later.
func (t *tasksCheck) mayOverlap(a, b tenure) bool {
	from, to := min(a.claim.after, b.claim.after), max(a.claim.before, b.claim.before)
	return t.unreliable(from, max(a.to, b.to)) || slices.ContainsFunc(t.moved[a.claim.taskKey], func(m *move) bool {
		return m.kind == removed && m.meets(from, to)
	})
}
