package main

import (
	"slices"
	"time"
)

// checkNotHeld: ErrNotHeld of an Unlock says that the lock was not ours any more. It is
// wrong while the witness has our token there, all the time since we got it, unless
// somebody else of the process has released all locks.
func (c *checker) checkNotHeld() {
	released := map[string][]span{}
	for _, r := range c.records {
		if r.Op == opUnlockAll || r.Op == opFinal {
			released[r.Process] = append(released[r.Process], span{r.Call, r.Return})
		}
	}
	for _, r := range c.records {
		if r.Op != opHold || r.Result != notHeld || r.Token == 0 || c.excused(r) {
			continue
		}
		c.counts["refusals: not held"]++
		meets := func(s span) bool { return s.meets(r.Got, r.Return) }
		there := func(h hold) bool { return h.begun.before <= r.Got && r.Return < min(h.until, h.ended.after) }
		if slices.ContainsFunc(c.stays[r.Token], there) && !slices.ContainsFunc(released[r.Process], meets) {
			c.violation("%s was told at %v that %s (seq %d) is not held, and the witness has it: %+v", r.Process, r.Return, r.Name, r.Seq, c.stays[r.Token])
		}
	}
}

// checkStale: ErrStale says that a receipt is not good any more. It is wrong while the
// witness has the task with that score, all the time.
func (t *tasksCheck) checkStale() {
	for i := range t.records {
		r := &t.records[i]
		if _, isVerdict := verdictKinds[r.Op]; !isVerdict || r.Result != stale {
			continue
		}
		t.counts["refusals: stale"]++
		at := receipt{taskKey{r.Name, r.ID}, r.Score}
		made := slices.IndexFunc(t.moved[at.taskKey], func(m *move) bool { return m.is.queued && m.is.score == r.Score && m.before <= r.Call })
		if made < 0 {
			continue
		}
		since := t.moved[at.taskKey][made].after
		used := slices.ContainsFunc(t.used[at], func(m *move) bool { return m.meets(since, r.Return) })
		if !used && !t.strike(since, r.Return) {
			t.violation("%s of %s on %s by %s was stale at %v, and the witness has its receipt %.6f", r.Op, r.ID, r.Name, r.Process, r.Return, r.Score)
		}
	}
}

// slowToCancel is how much later than a lease a handler's context may end on a machine
// that has more to do than it can, beyond what the process itself has noticed.
const slowToCancel = 60 * time.Millisecond

// checkHandlers: a Worker's handler, as long as its context lives, has its task to
// itself: the lease of its delivery, with its extensions, has not ended by the server's
// clock.
func (t *tasksCheck) checkHandlers() {
	leases := map[receipt]float64{}
	for i := range t.moves {
		if m := &t.moves[i]; m.kind == claimed || m.kind == extended {
			at := receipt{m.taskKey, m.is.delivery}
			leases[at] = max(leases[at], m.is.score)
		}
	}
	for i := range t.records {
		r := &t.records[i]
		end, known := leases[receipt{taskKey{r.Name, r.ID}, r.Delivery}]
		if r.Op != opHandle || r.Until == 0 || !known {
			continue
		}
		t.counts["handlers"]++
		stalled := slices.ContainsFunc(t.stalls[r.Process], func(s span) bool { return s.meets(r.Call, r.Until) })
		earliest, _ := t.clock.at(span{r.Until, r.Until})
		if earliest > seconds(end)+slowToCancel && !stalled && !t.strike(r.Call, r.Until) {
			t.violation("the handler of %s in %s went on until %v, %v after its lease", r.ID, r.Process, r.Until, earliest-seconds(end))
		}
	}
}

// onItsWay is for how long a request may be carried out that was given up: stalls, and
// a server that is stopped, take less.
const onItsWay = 4 * time.Second

// takings are the calls that take tasks of a queue, of which nobody knows what they
// have brought.
func (t *tasksCheck) takings(what op, queue string) (spans []span) {
	for _, r := range t.records {
		if r.Op == what && r.Name == queue && (r.Result == pending || r.Result == unknown) {
			end := r.Return
			if end == 0 {
				end = t.ended
			}
			spans = append(spans, span{r.Call, end + onItsWay})
		}
	}
	return spans
}

// checkGiven: what was taken was given to somebody, or the answer was lost.
func (t *tasksCheck) checkGiven() {
	lost := map[string][]span{popQueue: t.takings(opPopping, popQueue)}
	for _, queue := range []string{loopQueue, plainQueue} {
		lost[queue] = t.takings(opClaiming, queue)
	}
	given := map[receipt]bool{}
	for _, r := range t.records {
		if r.Op == opDelivery || r.Op == opPop {
			given[receipt{taskKey{r.Name, r.ID}, r.Delivery}] = true
		}
	}
	for i := range t.moves {
		m := &t.moves[i]
		at := receipt{m.taskKey, m.is.score}
		switch {
		case m.kind == claimed && m.queue != workQueue:
		case m.kind == removed && m.queue == popQueue:
			at.score = m.was.settled().score
		default:
			continue
		}
		t.counts["tasks taken"]++
		meets := func(s span) bool { return s.meets(m.after, m.before) }
		cancelled := func(r *record) bool { return r.Op == opCancel && r.mayHaveBeen() && r.Call <= m.before }
		switch {
		case given[at]:
		case m.kind == removed && slices.ContainsFunc(t.ops[m.taskKey], cancelled):
		case slices.ContainsFunc(lost[m.queue], meets):
			t.counts["tasks taken, the answer lost"]++
		default:
			t.violation("%v was %s at %v, and nobody was given it: %+v", m.taskKey, m.kind, m.span, m.was)
		}
	}
}
