package main

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/sluice-go/sluice"
)

// tasksCheck compares the records of tasks with their changes in the log.
type tasksCheck struct {
	*checker
	ops        map[taskKey][]*record // the operations on an ID, sorted by their calls
	moved      map[taskKey][]*move
	used       map[receipt][]*move // the changes that used up a receipt
	extensions map[receipt][]*move // these do not
	claims     map[receipt][]*move
	handlers   map[receipt]*record
	enqueued   map[string]*record // by version
	popped     map[*move]bool     // those of which a client has a record
	takes      map[sameTake][]*record
	late       map[string][]span // see lateClaims; nil before it was called
}

// receipt identifies a claim of a task.
type receipt struct {
	taskKey
	score float64
}

func (c *checker) checkTasks() {
	t := &tasksCheck{checker: c, ops: map[taskKey][]*record{}, moved: map[taskKey][]*move{}, used: map[receipt][]*move{}, extensions: map[receipt][]*move{},
		claims: map[receipt][]*move{}, handlers: map[receipt]*record{}, enqueued: map[string]*record{}, popped: map[*move]bool{}, takes: map[sameTake][]*record{}}
	t.index()
	t.checkGroups() // first: what it reports says more of a group than what follows
	for i := range c.moves {
		t.checkMove(&c.moves[i])
	}
	for _, m := range t.misListed {
		t.report("%v at %v: %+v became %+v, and the list of leased tasks shows something else", m.taskKey, m.span, m.was, m.is)
	}
	t.checkPauses()
	t.checkEnqueues()
	t.checkDeliveries()
	t.checkReceipts()
	t.checkByID()
	t.checkStale()
	t.checkReturned()
	t.checkOverlaps()
	t.checkHandlers()
	t.checkLeftovers()
	t.checkOnce()
	t.checkTicks()
	t.checkLimits()
	t.checkStocks()
	t.checkReplicas()
}

// index fills the maps.
func (t *tasksCheck) index() {
	for i := range t.records {
		r := &t.records[i]
		key := taskKey{r.Name, r.ID}
		switch r.Op {
		case opEnqueue:
			t.enqueued[r.Version] = r
			if r.Take.Units > 0 && !r.Batch {
				of := takeOf(r)
				t.takes[of] = append(t.takes[of], r)
			}
		case opHandle:
			t.handlers[receipt{key, r.Delivery}] = r
		}
		if r.ID != "" {
			t.ops[key] = append(t.ops[key], r)
		}
	}
	for _, ops := range t.ops {
		slices.SortFunc(ops, func(a, b *record) int { return cmp.Compare(a.Call, b.Call) })
	}
	for i := range t.moves {
		m := &t.moves[i]
		t.moved[m.taskKey] = append(t.moved[m.taskKey], m)
		if m.kind == claimed {
			at := receipt{m.taskKey, m.is.score}
			t.claims[at] = append(t.claims[at], m)
		}
		if !m.was.queued || m.kind == deferred || m.is.score == m.was.score {
			continue
		}
		if m.kind == extended {
			at := receipt{m.taskKey, m.was.delivery}
			t.extensions[at] = append(t.extensions[at], m)
			continue
		}
		t.use(m, m.was.score)
		if m.was.delivery != 0 && m.was.delivery != m.was.score {
			t.use(m, m.was.delivery)
		}
		if m.was.due != 0 && m.kind != tookOver { // the waiting version had taken over: its due time was the receipt
			for _, r := range t.ops[m.taskKey] {
				if m.was.waitsFor(r.Score) && !slices.Contains(t.used[receipt{m.taskKey, r.Score}], m) {
					t.use(m, r.Score)
				}
			}
		}
	}
}

func (t *tasksCheck) use(m *move, score float64) {
	at := receipt{m.taskKey, score}
	t.used[at] = append(t.used[at], m)
}

// checkMove checks that a client has requested a change of a task, and that the change is
// allowed.
func (t *tasksCheck) checkMove(m *move) {
	if m.queue == tickQueue {
		t.checkTick(m)
		return
	}
	t.counts["tasks "+string(m.kind)]++
	if isOfMany(m.queue) {
		t.counts["tasks of many queues "+string(m.kind)]++
	}
	t.checkUnits(m)
	t.checkGroup(m)
	switch m.kind {
	case unexplained:
		t.report("%v at %v: %+v became %+v", m.taskKey, m.span, m.was, m.is)
	case claimed:
		t.checkClaim(m)
	case extended:
		t.checkLease(m)
		if !hasWorkers(m.queue) { // a Worker also extends tasks whose handler has not begun
			t.requireRequest(m, true, ends(m, opExtend))
		}
	case added, replaced, deferred:
		t.checkEnqueued(m)
	case tookOver:
		// Once the lease has ended, a Claim lets the waiting version take over.
		if t.early(m) && !t.neverBegun(m) && !t.isGivenBack(m) {
			t.requireRequest(m, true, ends(m, opDequeue, opRetry, opRelease, opBury))
		}
	case retried:
		t.requireRequest(m, t.sentBack(m) == nil, func(r *record) bool { // Reschedule clears a lease that has ended
			return ends(m, opRetry)(r) || r.Op == opReschedule && !t.early(m)
		})
	case released:
		if r := t.sentBack(m); r != nil {
			t.checkAgain(m, r)
		} else if !t.neverBegun(m) && !t.isGivenBack(m) {
			t.requireRequest(m, false, ends(m, opRelease))
		}
	case rescheduled:
		t.requireRequest(m, false, byID(opReschedule))
	case removed:
		t.checkRemoval(m)
	case buried: // a Claim buries a task whose attempts are used up
		if m.was.attempt < maxAttempts || m.was.leased() && t.early(m) {
			t.requireRequest(m, true, ends(m, opBury))
		}
	case revived:
		t.requireRequest(m, false, byID(opRevive))
	case deadRemoved:
		t.requireRequest(m, false, func(r *record) bool { return r.Op == opCancel || r.Op == opDrop })
	}
}

// neverBegun says whether a Worker has claimed the task and no handler has begun: it gives such
// tasks back without a request.
func (t *tasksCheck) neverBegun(m *move) bool {
	return hasWorkers(m.queue) && t.handlers[receipt{m.taskKey, m.was.delivery}] == nil
}

// sentBack returns the record of the handler that had the task, if it has returned Again.
func (t *tasksCheck) sentBack(m *move) *record {
	if r := t.handlers[receipt{m.taskKey, m.was.delivery}]; hasWorkers(m.queue) && r != nil && r.Result == again {
		return r
	}
	return nil
}

// checkAgain checks that a task whose handler returned Again is due that much later, by the
// server's clock.
func (t *tasksCheck) checkAgain(m *move, r *record) {
	t.counts["tasks due again"]++
	earliest, latest := t.clock.at(m.span)
	if due := seconds(m.is.dueAt()) - r.Delay; due < earliest-time.Millisecond || due > latest+time.Millisecond || r.Call > m.before {
		t.report("%v was to be due again in %v at %v: %+v became %+v", m.taskKey, r.Delay, m.span, m.was, m.is)
	}
}

// early says whether a task was not due yet by the server's clock.
func (t *tasksCheck) early(m *move) bool {
	_, latest := t.clock.at(m.span)
	return seconds(m.was.score) > latest+time.Millisecond
}

// checkClaim checks that a task is claimed no earlier than it is due, or its lease has ended,
// by the server's clock at that time, and that the claim counts as an attempt.
func (t *tasksCheck) checkClaim(m *move) {
	t.checkLease(m)
	t.checkPaused(m)
	claim := m.is.score - lease.Seconds()
	was := m.was.afterLease()
	due := max(m.was.dueAt(), was.dueAt()) // a waiting version is not due before the lease ends
	if due > claim && hasWorkers(m.queue) && m.was.due != 0 {
		// Unless one script of a Worker has finished the version before, and then claimed this one.
		t.requireRequest(m, true, func(*record) bool { return false })
		due = m.was.due
	}
	if due > claim+2e-6 { // a double is exact to a quarter of a microsecond
		t.report("%v was claimed %.6f s early at %v: %+v became %+v", m.taskKey, due-claim, m.span, m.was, m.is)
	}
	attempt, unseen := was.attempt+1, was.unseen
	if was.leased() && was.lease == was.token && was.unseen < 2 { // perhaps no handler has seen it
		attempt, unseen = was.attempt, was.unseen+1
	}
	if m.is.attempt != attempt || m.is.unseen != unseen {
		t.report("%v: attempt %d after %d at %v", m.taskKey, m.is.attempt, was.attempt, m.span)
	}
}

// checkLease checks that a lease begins at the claim or extension, by the server's clock.
func (t *tasksCheck) checkLease(m *move) {
	earliest, latest := t.clock.at(m.span)
	begun := seconds(m.is.score) - lease
	if begun < earliest-settle || begun > latest+settle {
		t.report("%v: a lease from %v, written between %v and %v", m.taskKey, begun, earliest, latest)
	}
}

// ends matches operations with the receipt that was valid then.
func ends(m *move, ops ...op) func(*record) bool {
	return func(r *record) bool {
		return slices.Contains(ops, r.Op) && (r.Score == m.was.score || r.Score == m.was.due || r.Score == m.was.delivery)
	}
}

// byID matches operations without a receipt.
func byID(what op) func(*record) bool {
	return func(r *record) bool { return r.Op == what }
}

// requireRequest checks that an operation has requested a change. If handled is true, a Worker
// whose handler had the task may have requested it.
func (t *tasksCheck) requireRequest(m *move, handled bool, requested func(*record) bool) {
	if !t.isRequested(m, requested) {
		t.requireHandler(m, handled)
	}
}

// isRequested says whether an operation has requested a change.
func (t *tasksCheck) isRequested(m *move, requested func(*record) bool) bool {
	for _, r := range t.ops[m.taskKey] {
		over := r.Result == done && r.Return < m.after
		if r.Call <= m.before && requested(r) && r.mayHaveRun() && !over {
			return true
		}
	}
	return false
}

// requireHandler checks that a Worker's handler had the task whose end the Worker has requested, if
// that may be.
func (t *tasksCheck) requireHandler(m *move, handled bool) {
	if r := t.handlers[receipt{m.taskKey, m.was.delivery}]; handled && r != nil && r.Call <= m.before {
		return
	}
	t.unrequested(m)
}

// unrequested reports a change without a request.
func (t *tasksCheck) unrequested(m *move) {
	t.report("%v at %v was %s, and no client requested it: %+v became %+v", m.taskKey, m.span, m.kind, m.was, m.is)
}

// checkEnqueued checks that a client has enqueued a new version, and that the policy allows
// it.
func (t *tasksCheck) checkEnqueued(m *move) {
	r := t.enqueued[m.is.version]
	if r == nil || r.Call > m.before || !r.mayHaveRun() {
		t.unrequested(m)
		return
	}
	if m.kind == replaced && m.was.leased() && t.early(m) {
		t.report("%v at %v was replaced during a lease: %+v became %+v", m.taskKey, m.span, m.was, m.is)
	}
	due := m.is.dueAt()
	if m.kind == deferred {
		due = m.is.due
	}
	policy, before := sluice.Duplicates(r.Policy), m.was.afterLease().dueAt()
	takesPlace := m.kind == replaced || m.kind == deferred && m.was.due != 0
	when := m.span
	if r.Batch { // perhaps of several scripts: delays count from the first one's time at the earliest
		when.after = min(when.after, r.Call)
	}
	earliest, latest := t.clock.at(when)
	at := seconds(due) - r.Delay
	if policy == sluice.DuplicatesKeepDue && takesPlace {
		if (due >= before || alike(due, before)) && due-before < 1e-5 && at <= latest+settle { // it has the due time of the version before
			t.counts["tasks that kept an earlier due time"]++
			return
		}
		if due > before {
			t.report("%v at %v is due at %f with KeepDue, after %f", m.taskKey, m.span, due, before)
		}
	}
	if at < earliest-settle || at > latest+settle {
		if policy == sluice.DuplicatesKeepDue && t.keptFromBatch(m, r, due) {
			t.counts["tasks that kept the due time of one in their batch"]++
			return
		}
		t.report("%v at %v is due at %v instead of %v after it was enqueued", m.taskKey, m.span, seconds(due), r.Delay)
	}
	if takesPlace || m.kind == deferred && (policy == sluice.DuplicatesKeep || policy == sluice.DuplicatesOnce) {
		t.checkPolicy(m, policy, due, before)
	}
}

// checkPolicy checks that the policy allows a new version. One that is earlier by less than a
// tenth of a millisecond is due a microsecond after the one before, so that their receipts
// differ.
func (t *tasksCheck) checkPolicy(m *move, policy sluice.Duplicates, due, before float64) {
	counted := due > before && due-before < 2e-6
	if policy == sluice.DuplicatesKeep || policy == sluice.DuplicatesOnce || policy == sluice.DuplicatesEarliest && due >= before && !counted || policy == sluice.DuplicatesLatest && due <= before {
		t.report("%v at %v was %s against policy %d: %+v became %+v", m.taskKey, m.span, m.kind, policy, m.was, m.is)
	}
}

// checkRemoval checks that a task was finished, cancelled or popped, and that no waiting
// version was removed except by Cancel.
func (t *tasksCheck) checkRemoval(m *move) {
	_, latest := t.clock.at(m.span)
	handler := t.handlers[receipt{m.taskKey, m.was.delivery}]
	finished := ends(m, opDequeue)
	if m.was.due != 0 { // only a waiting version that has taken over can be finished
		finished = func(r *record) bool { return r.Op == opDequeue && m.was.waitsFor(r.Score) && !t.early(m) }
		handler = nil
	}
	switch {
	case m.was.waits != 0: // no client can have it
		t.requireRequest(m, false, byID(opCancel))
	case m.queue == popQueue && seconds(m.was.afterLease().score) <= latest+time.Millisecond:
		// checkReturned checks it.
	case hasWorkers(m.queue) && handler != nil && handler.Call <= m.before && handler.mayHaveRun():
	default:
		t.requireRequest(m, false, func(r *record) bool { return finished(r) || r.Op == opCancel && m.isAsRead(r.Read) })
	}
}

// isAsRead says whether a task still had the score with which it was read, if it was.
func (m *move) isAsRead(score float64) bool {
	const lastMicros = 3e-6 // by which a version that takes over keeps its scores unlike
	return score == 0 || math.Abs(m.was.score-score) < lastMicros || math.Abs(m.was.afterLease().score-score) < lastMicros
}

// notWritten are the outcomes of tasks that are not enqueued.
var notWritten = []sluice.Outcome{sluice.OutcomeKept, sluice.OutcomeDone, sluice.OutcomeSoldOut}

// checkEnqueues checks that the log has every acknowledged task, and none that was refused.
func (t *tasksCheck) checkEnqueues() {
	for version, r := range t.enqueued {
		kept, written := t.versions[version]
		t.counts["enqueues "+string(r.Result)]++
		acknowledged := r.Result == done || r.Result == short
		switch {
		case acknowledged && slices.Contains(notWritten, sluice.Outcome(r.Outcome)):
			if written {
				t.report("%s was reported as %v by %s, and written", version, sluice.Outcome(r.Outcome), r.Name)
			}
		case acknowledged && !written:
			if t.inGap(r.Call, r.Return) {
				t.counts["acknowledged tasks lost by everysec, excused"]++
			} else {
				t.report("%s was acknowledged by %s (outcome %d), between %v and %v, and never written", version, r.Name, r.Outcome, r.Call, r.Return)
			}
		case acknowledged && !kept:
			t.counts["acknowledged tasks cut off, excused"]++
		case !r.mayHaveRun() && written:
			t.report("%s was refused by %s (%s), and written", version, r.Name, r.Result)
		}
	}
}

// checkDeliveries checks that every claim in the log went to one caller, and no other.
func (t *tasksCheck) checkDeliveries() {
	seen := map[receipt]int{}
	for i := range t.records {
		r := &t.records[i]
		at := receipt{taskKey{r.Name, r.ID}, r.Delivery}
		var from []*move
		switch r.Op {
		case opDelivery, opHandle:
			from = t.claims[at]
		case opPop:
			from = t.used[at]
		default:
			continue
		}
		t.counts["deliveries"]++
		t.checkDelivery(r, from)
		if t.claimedInGap(r) {
			continue // it may be claimed again
		}
		if seen[at]++; seen[at] > max(1, len(from)) {
			t.report("%v with receipt %.6f was delivered %d times", at.taskKey, at.score, seen[at])
		}
	}
}

// claimedInGap says whether a task was claimed when acknowledged writes were lost. The
// receipt says when the claim was made; its reply may have taken long.
func (t *tasksCheck) claimedInGap(r *record) bool {
	if r.Op == opPop {
		return t.inGap(r.Call, r.Return)
	}
	return slices.ContainsFunc(t.gaps, func(g span) bool {
		earliest, latest := t.clock.at(g)
		claim := seconds(r.Delivery) - lease
		return earliest-settle <= claim && claim <= latest+settle
	})
}

// checkDelivery checks that the log has a delivery.
func (t *tasksCheck) checkDelivery(r *record, moves []*move) {
	known := slices.ContainsFunc(moves, func(m *move) bool {
		if r.Op == opPop {
			popped := m.kind == removed && m.was.version == r.Version && m.was.afterLease().attempt == r.Attempt && m.meets(r.Call, r.Return)
			if popped {
				t.popped[m] = true
				t.checkPaused(m)
			}
			return popped
		}
		return m.is.attempt == r.Attempt && m.is.version == r.Version
	})
	if !known && !t.claimedInGap(r) {
		t.report("%s of %s on %s to %s (%s, attempt %d, receipt %.6f): the log does not have it", r.Op, r.ID, r.Name, r.Process, r.Version, r.Attempt, r.Score)
	}
}

// receiptKinds has the changes that an operation with a receipt makes.
var receiptKinds = map[op][]moveKind{
	opDequeue: {removed, tookOver},
	opRetry:   {retried, tookOver},
	opRelease: {released, tookOver},
	opBury:    {buried, tookOver},
	opExtend:  {extended},
}

// checkReceipts checks that an operation with a receipt which returned nil was carried out,
// once.
func (t *tasksCheck) checkReceipts() {
	used := map[*move]bool{}
	for _, r := range t.byReturn() {
		kinds, hasReceipt := receiptKinds[r.Op]
		if !hasReceipt || r.Result != done {
			continue
		}
		t.counts["receipts used"]++
		moves := t.used[receipt{taskKey{r.Name, r.ID}, r.Score}]
		if r.Op == opExtend {
			moves = t.extensions[receipt{taskKey{r.Name, r.ID}, r.Score}]
		}
		at := slices.IndexFunc(moves, func(m *move) bool {
			return !used[m] && slices.Contains(kinds, m.kind) && m.meets(r.Call, r.Return)
		})
		if at >= 0 {
			used[moves[at]] = true
		} else if !t.inGap(r.Call, r.Return) && (r.Op != opExtend || len(t.clock.jumps) == 0) { // no lease is made shorter
			t.report("%s of %s on %s by %s (receipt %.6f) returned nil at %v: the log has no such change, or another operation made it", r.Op, r.ID, r.Name, r.Process, r.Score, r.Return)
		}
	}
}

// byReturn returns the records in the order of their returns. If each takes the first change that
// it may have made, none takes what only one that returned earlier can have made: where a power cut
// undid a change, two callers may have made the same.
func (t *tasksCheck) byReturn() []*record {
	sorted := make([]*record, len(t.records))
	for i := range t.records {
		sorted[i] = &t.records[i]
	}
	slices.SortStableFunc(sorted, func(a, b *record) int { return cmp.Compare(a.Return, b.Return) })
	return sorted
}
