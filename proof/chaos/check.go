package main

import (
	"fmt"
	"slices"
	"time"
)

// checker compares the records of the clients with the log.
type checker struct {
	*evidence
	*replayed
	tokenHolds map[uint64][]hold // in the log, by token
	lostFences map[string]bool   // by name and fence: those that went back, excused
	losses     []span            // restarts that lost data
	forces     map[string][]span // when a name may have been forced open
	stalls     map[string][]span // when a process did not run

	finishesOf map[string][]int // the indexes of those of an ID that is enqueued once
	counts     tally
	violations []string
}

// tally counts by names.
type tally map[string]int

func (t tally) add(other tally) {
	for name, n := range other {
		t[name] += n
	}
}

// maxReported is how many violations are reported; the first ones matter.
const maxReported = 30

// report reports a violation.
func (c *checker) report(format string, args ...any) {
	c.counts["violations"]++
	if len(c.violations) < maxReported {
		c.violations = append(c.violations, fmt.Sprintf(format, args...))
	}
}

// check checks a round. It returns the violations, a line each, and the numbers of what it
// has checked.
func check(e *evidence) ([]string, tally) {
	c := &checker{evidence: e, replayed: replay(e), tokenHolds: map[uint64][]hold{}, lostFences: map[string]bool{}, stalls: map[string][]span{}, counts: tally{}}
	for _, r := range c.records {
		if r.Op == opStall {
			c.stalls[r.Process] = append(c.stalls[r.Process], span{r.Call, r.Return})
		}
	}
	for _, h := range c.holds {
		c.tokenHolds[h.token] = append(c.tokenHolds[h.token], h)
	}
	c.finishesOf = map[string][]int{}
	for i, f := range c.finishes {
		c.finishesOf[f.id] = append(c.finishesOf[f.id], i)
	}
	c.findLosses()
	c.findForces()
	c.checkOwners()
	c.checkBeliefs()
	c.checkPermits()
	c.checkKinds()
	c.checkFences()
	c.checkRegister()
	c.checkUnlocks()
	c.checkNotHeld()
	c.checkLockExtensions()
	c.checkLocked()
	c.checkWaits()
	c.checkLines()
	c.checkQueueLines()
	c.checkTasks()
	c.checkEnded()
	if c.waits != nil {
		c.checkLiveness()
	}
	began := time.Now()
	c.linearize()
	c.counts["porcupine ms"] = int(time.Since(began).Milliseconds())
	c.counts["log entries"] = len(e.log)
	c.counts["log entries cut off"] = c.lost
	return c.violations, c.counts
}

// findLosses finds the restarts that lost data.
func (c *checker) findLosses() {
	lost := false
	for i := range c.log {
		lost = lost || c.log[i].lost
		if c.log[i].rewind && lost {
			c.losses = append(c.losses, c.log[i].span)
			lost = false
		}
	}
	c.losses = append(c.losses, c.gaps...)
}

// unreliable says whether the server was unreliable at some time within a span: its clock
// was set ahead, or it lost data.
func (c *checker) unreliable(from, to time.Duration) bool {
	_, set := c.clock.setAhead(from, to)
	return set || c.lostData(from, to)
}

// lostData says whether the server lost data at some time within a span.
func (c *checker) lostData(from, to time.Duration) bool {
	return slices.ContainsFunc(c.losses, func(loss span) bool { return loss.meets(from, to) })
}

// checkEnded checks that every operation ends, in bounded time after the faults.
func (c *checker) checkEnded() {
	for _, r := range c.records {
		_, killed := c.deaths[r.Process]
		switch {
		case r.Op == opStuck:
			c.report("stuck: %s in %s (%s)", r.Name, r.Process, r.Result)
		case r.Op == opFinal && r.Result != done && r.Result != unknown && !killed:
			c.report("when everything was quiet: %s in %s: %s after %v", r.Name, r.Process, r.Result, r.Return-r.Call)
		case r.Result == pending && !killed:
			c.report("%s on %s in %s, begun at %v, never returned", r.Op, r.Name, r.Process, r.Call)
		}
		if r.Op != opStall {
			c.counts["ops "+string(r.Op)]++
		}
		if r.Result == unknown {
			c.counts["unknown outcomes"]++
		}
		c.checkCorrupt(r)
		c.noteStrike(r)
		c.checkLate(r)
	}
}

const (
	// late is what the library promises: a call returns this soon after its context has
	// ended. A busy machine may exceed late, except not tooLate.
	late    = 50 * time.Millisecond
	tooLate = time.Second
)

// checkLate checks that a call returns soon after its context has ended, whatever the server
// does. Time in which the process did not run does not count.
func (c *checker) checkLate(r record) {
	if r.Limit == 0 || r.Return < r.Limit {
		return
	}
	c.counts["contexts ended"]++
	from := max(r.Limit, r.Call)
	by := r.Return - from
	for _, s := range c.stalls[r.Process] {
		by -= max(0, min(s.before, r.Return)-max(s.after, from))
	}
	if by > late {
		c.counts["contexts ended, returned more than 50ms later"]++
	}
	if by > tooLate {
		c.report("%s on %s in %s (seq %d) returned %v after its context had ended", r.Op, r.Name, r.Process, r.Seq, by)
	}
}

// noteStrike counts the effects of killing and stopping processes.
func (c *checker) noteStrike(r record) {
	if r.Op != opHandle && (r.Op != opHold || r.From == 0) {
		return
	}
	if _, killed := c.deaths[r.Process]; killed && r.Result == pending {
		c.counts[leftByKilled]++
	}
	for _, s := range c.stops[r.Process] {
		if r.Call < s.before && r.Until < s.before && r.Return > s.before && r.Result != done {
			c.counts[lostByStopped]++
		}
	}
}

const (
	leftByKilled  = "holds and leases left by killed clients"
	lostByStopped = "holds and leases lost by stopped clients"
	holdsStruck   = "holds struck: "
)
