package main

import (
	"cmp"
	"slices"
	"time"
)

// checkNotHeld checks ErrNotHeld of an Unlock: the lock was no longer held with its token. It
// is wrong if the log has the token's hold from the acquisition until the return, unless
// another goroutine of the process has called UnlockAll, or the caller's deadline had passed
// when it called Unlock: an error without an answer is ErrNotHeld then.
func (c *checker) checkNotHeld() {
	released := map[string][]span{}
	for _, r := range c.records {
		if r.Op == opUnlockAll || r.Op == opFinal {
			released[r.Process] = append(released[r.Process], span{r.Call, cmp.Or(r.Return, c.ended)}) // 0 if it was killed meanwhile
		}
	}
	for _, r := range c.records {
		if r.Op != opHold || r.Result != notHeld || r.Token == 0 || r.Deadline != 0 && r.Unlock >= r.Deadline || c.excused(r) {
			continue
		}
		c.counts["refusals: not held"]++
		meets := func(s span) bool { return s.meets(r.Got, r.Return) }
		unbroken := func(h hold) bool { return h.begun.before <= r.Got && r.Return < min(h.until, h.ended.after) }
		if slices.ContainsFunc(c.tokenHolds[r.Token], unbroken) && !slices.ContainsFunc(released[r.Process], meets) {
			c.report("%s got ErrNotHeld at %v for %s (seq %d), and the log has its hold: %+v", r.Process, r.Return, r.Name, r.Seq, c.tokenHolds[r.Token])
		}
	}
}

// checkStale checks ErrStale: the receipt was no longer valid. It is wrong if the log has the
// task with this score the whole time. What was only seen, and not claimed, is not followed by an
// extension: then the score that was seen is gone.
func (t *tasksCheck) checkStale() {
	for i := range t.records {
		r := &t.records[i]
		if _, hasReceipt := receiptKinds[r.Op]; !hasReceipt || r.Result != stale {
			continue
		}
		t.counts["refusals: stale"]++
		at := receipt{taskKey{r.Name, r.ID}, r.Score}
		made := slices.IndexFunc(t.moved[at.taskKey], func(m *move) bool { return m.is.queued && m.is.score == r.Score && m.before <= r.Call })
		if made < 0 {
			continue
		}
		since := t.moved[at.taskKey][made].after
		meets := func(m *move) bool { return m.meets(since, r.Return) }
		used := slices.ContainsFunc(t.used[at], meets) || r.Delivery == 0 && slices.ContainsFunc(t.moved[at.taskKey][made+1:], meets)
		if !used && !t.unreliable(since, r.Return) && !t.mayHaveLostItsPlace(r) {
			t.report("%s of %s on %s by %s was stale at %v, and the log has its receipt %.6f", r.Op, r.ID, r.Name, r.Process, r.Return, r.Score)
		}
	}
}

// mayHaveLostItsPlace says whether an extension came when the lease may have run out, in a queue
// that limits how many are leased: then the place may be another's.
func (t *tasksCheck) mayHaveLostItsPlace(r *record) bool {
	limits := func(s limitsSet) bool { return s.queue == r.Name && s.limits.Running > 0 && s.after <= r.Return }
	if r.Op != opExtend || !slices.ContainsFunc(t.limitsSet, limits) {
		return false
	}
	end := r.Score
	for _, m := range t.moved[taskKey{r.Name, r.ID}] {
		if m.kind == extended && m.is.delivery == r.Score && m.after <= r.Return {
			end = max(end, m.is.score)
		}
	}
	_, latest := t.clock.at(span{r.Call, r.Return})
	return latest+clockError >= seconds(end)
}

// slowToCancel is how much later than its lease a handler's context may end on a busy
// machine, besides the time in which the process did not run.
const slowToCancel = 60 * time.Millisecond

// checkHandlers checks that a Worker's handler holds its task until its context ends: the
// lease of its claim, with its extensions, has not ended by the server's clock.
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
		claimed := r.Call // or earlier: on a busy machine a handler begins some time after its claim
		for _, m := range t.claims[receipt{taskKey{r.Name, r.ID}, r.Delivery}] {
			claimed = min(claimed, m.after)
		}
		if earliest > seconds(end)+slowToCancel && !stalled && !t.unreliable(claimed, r.Until) {
			t.report("the handler of %s in %s went on until %v, %v after its lease", r.ID, r.Process, r.Until, earliest-seconds(end))
		}
	}
}

// maxInNetwork is how long after its call has returned the server may still carry out a
// request: stalls, and a stopped server, take less time.
const maxInNetwork = 4 * time.Second

// unknownCalls returns the calls that claim or pop tasks of a queue and whose result is not
// known, or that may have dropped some.
func (t *tasksCheck) unknownCalls(what op, queue string) (spans []span) {
	for i := range t.records {
		r := &t.records[i]
		if r.Op != what || r.Name != queue {
			continue
		}
		switch end := r.Return; {
		case r.Result == pending || r.Result == unknown:
			if end == 0 {
				end = t.ended
			}
			spans = append(spans, span{r.Call, end + maxInNetwork})
		case what == opClaiming && isLate(r): // it drops tasks whose leases have ended
			spans = append(spans, span{r.Call, end})
		}
	}
	return spans
}

// isLate says whether a Claim took so long that the leases of its first tasks had ended.
func isLate(r *record) bool { return r.Return-r.Call > lease-lease/50 }

// givesBackFor is how long a Claim goes on to give back what came too late.
const givesBackFor = 5 * time.Second

// lateClaims returns the calls of Claim on a queue that may have given tasks back.
func (t *tasksCheck) lateClaims(queue string) []span {
	if t.late != nil {
		return t.late[queue]
	}
	t.late = map[string][]span{}
	for i := range t.records {
		r := &t.records[i]
		if r.Op == opClaiming && (r.Result == pending || isLate(r)) {
			end := r.Return
			if end == 0 {
				end = t.ended
			}
			t.late[r.Name] = append(t.late[r.Name], span{r.Call, end})
		}
	}
	return t.late[queue]
}

// isGivenBack says whether the Claim that leased the task may have given it back, because its
// reply came too late.
func (t *tasksCheck) isGivenBack(m *move) bool {
	claims := t.claims[receipt{m.taskKey, m.was.delivery}]
	return slices.ContainsFunc(t.lateClaims(m.queue), func(late span) bool {
		if m.after > late.before+givesBackFor+maxInNetwork {
			return false
		}
		return slices.ContainsFunc(claims, func(claim *move) bool { return late.meets(claim.after, claim.before) })
	})
}

// checkReturned checks that claimed and popped tasks were returned to a caller, or that the
// reply was lost.
func (t *tasksCheck) checkReturned() {
	lost := map[string][]span{popQueue: t.unknownCalls(opPopping, popQueue)}
	for _, queue := range []string{loopQueue, plainQueue} {
		lost[queue] = t.unknownCalls(opClaiming, queue)
	}
	returned := map[receipt]bool{}
	for _, r := range t.records {
		if r.Op == opDelivery || r.Op == opPop {
			returned[receipt{taskKey{r.Name, r.ID}, r.Delivery}] = true
		}
	}
	for i := range t.moves {
		m := &t.moves[i]
		at := receipt{m.taskKey, m.is.score}
		switch {
		case m.kind == claimed && !hasWorkers(m.queue):
		case m.kind == removed && m.queue == popQueue:
			at.score = m.was.afterLease().score
		default:
			continue
		}
		t.counts["tasks claimed or popped"]++
		meets := func(s span) bool { return s.meets(m.after, m.before) }
		cancelled := func(r *record) bool {
			return r.Op == opCancel && r.mayHaveRun() && r.Call <= m.before && (r.Result != done || r.Return >= m.after)
		}
		switch {
		case returned[at]:
		case m.kind == removed && slices.ContainsFunc(t.ops[m.taskKey], cancelled):
		case slices.ContainsFunc(lost[m.queue], meets):
			t.counts["tasks claimed or popped, the reply lost"]++
		default:
			t.report("%v was %s at %v, and no caller got it: %+v", m.taskKey, m.kind, m.span, m.was)
		}
	}
}
