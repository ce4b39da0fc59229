package main

import (
	"fmt"
	"time"
)

// checker holds what the clients told against what the witness says.
type checker struct {
	*evidence
	*testimony
	stays  map[uint64][]hold // of a token on the server
	losses []span            // restarts without some of the data
	stalls map[string][]span // when a process did not run
	counts tally
	wrong  []string
}

// tally counts things by their names.
type tally map[string]int

func (t tally) add(other tally) {
	for name, n := range other {
		t[name] += n
	}
}

// maxWrong is how many violations are told of: the first ones are what matters.
const maxWrong = 30

func (c *checker) violation(format string, args ...any) {
	c.counts["violations"]++
	if len(c.wrong) < maxWrong {
		c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
	}
}

// check checks a round. It returns the violations, a line each, and what it looked
// at.
func check(e *evidence) ([]string, tally) {
	c := &checker{evidence: e, testimony: replay(e), stays: map[uint64][]hold{}, stalls: map[string][]span{}, counts: tally{}}
	for _, r := range c.records {
		if r.Op == opStall {
			c.stalls[r.Process] = append(c.stalls[r.Process], span{r.Call, r.Return})
		}
	}
	for _, h := range c.holds {
		c.stays[h.token] = append(c.stays[h.token], h)
	}
	c.findLosses()
	c.checkOwners()
	c.checkBeliefs()
	c.checkFences()
	c.checkRegister()
	c.checkUnlocks()
	c.checkNotHeld()
	c.checkLockExtensions()
	c.checkBusy()
	c.checkWaits()
	c.checkTasks()
	c.checkEnded()
	began := time.Now()
	c.linearize()
	c.counts["porcupine ms"] = int(time.Since(began).Milliseconds())
	c.counts["log entries"] = len(e.log)
	c.counts["log entries cut off"] = c.lost
	return c.wrong, c.counts
}

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

// strike says whether the server's word was bad at some time within a span, for no
// fault of the library: its clock was set ahead, or it lost data.
func (c *checker) strike(from, to time.Duration) bool {
	for _, loss := range c.losses {
		if loss.meets(from, to) {
			return true
		}
	}
	_, set := c.clock.setAhead(from, to)
	return set
}

// checkEnded: everything comes to an end, in bounded time after the faults.
func (c *checker) checkEnded() {
	for _, r := range c.records {
		_, killed := c.deaths[r.Process]
		switch {
		case r.Op == opStuck:
			c.violation("stuck: %s in %s (%s)", r.Name, r.Process, r.Result)
		case r.Op == opFinal && r.Result != done && r.Result != unknown && !killed:
			c.violation("when all was quiet: %s in %s: %s after %v", r.Name, r.Process, r.Result, r.Return-r.Call)
		case r.Result == pending && !killed:
			c.violation("%s on %s in %s, begun at %v, never returned", r.Op, r.Name, r.Process, r.Call)
		}
		if r.Op != opStall {
			c.counts["ops "+string(r.Op)]++
		}
		if r.Result == unknown {
			c.counts["unknown outcomes"]++
		}
		c.noteStrike(r)
		c.checkLate(r)
	}
}

const (
	// late is what the library promises: a call returns so soon after its context has
	// ended. tooLate is what is no slowness of a machine with more to do than it can.
	late    = 50 * time.Millisecond
	tooLate = time.Second
)

// checkLate: a call returns soon after its context has ended, whatever Redis does. The
// time for which its process did not run does not count.
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
		c.violation("%s on %s in %s (seq %d) returned %v after its context had ended", r.Op, r.Name, r.Process, r.Seq, by)
	}
}

// noteStrike counts what killing and stopping processes has done.
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
	leftByKilled  = "holds and leases left by the killed"
	lostByStopped = "holds and leases lost by the stopped"
	holdsStruck   = "holds struck: "
)
