package main

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluice-go/sluice"
)

// tasksCheck holds what clients told of tasks against what became of them.
type tasksCheck struct {
	*checker
	ops      map[taskKey][]*record // what was done to an ID, by its call
	moved    map[taskKey][]*move
	used     map[receipt][]*move // what used up a receipt
	claims   map[receipt][]*move
	handlers map[receipt]*record
	enqueued map[string]*record // by version
}

// receipt is what an operation on a task shows.
type receipt struct {
	taskKey
	score float64
}

func (c *checker) checkTasks() {
	t := &tasksCheck{checker: c, ops: map[taskKey][]*record{}, moved: map[taskKey][]*move{}, used: map[receipt][]*move{},
		claims: map[receipt][]*move{}, handlers: map[receipt]*record{}, enqueued: map[string]*record{}}
	t.index()
	for i := range c.moves {
		t.judge(&c.moves[i])
	}
	t.checkEnqueues()
	t.checkDeliveries()
	t.checkVerdicts()
	t.checkByID()
	t.checkStale()
	t.checkGiven()
	t.checkHands()
	t.checkHandlers()
	t.checkLeft()
}

func (t *tasksCheck) index() {
	for i := range t.records {
		r := &t.records[i]
		key := taskKey{r.Name, r.ID}
		switch r.Op {
		case opEnqueue:
			t.enqueued[r.Version] = r
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
		t.use(m, m.was.score)
		if m.was.due != 0 && m.kind != tookOver { // it had taken over: its time was the receipt
			t.use(m, m.was.due)
		}
	}
}

func (t *tasksCheck) use(m *move, score float64) {
	at := receipt{m.taskKey, score}
	t.used[at] = append(t.used[at], m)
}

// judge says whether a change of a task is one that somebody has asked for, and
// may.
func (t *tasksCheck) judge(m *move) {
	t.counts["tasks "+string(m.kind)]++
	switch m.kind {
	case strange:
		t.violation("%v at %v: %+v became %+v", m.taskKey, m.span, m.was, m.is)
	case claimed:
		t.judgeClaim(m)
	case extended:
		t.judgeLease(m)
		if m.queue != workQueue { // a Worker extends what its handler has not begun with, too
			t.thank(m, true, ends(m, opExtend))
		}
	case added, replaced, deferred:
		t.judgeEnqueue(m)
	case tookOver:
		// When the lease has run out, a Claim puts the version that waited at its time.
		if t.early(m) {
			t.thank(m, true, ends(m, opDequeue, opRetry, opRelease, opBury))
		}
	case retried:
		t.thank(m, true, ends(m, opRetry))
	case released:
		if m.queue != workQueue { // a Worker gives back what it has not begun
			t.thank(m, false, ends(m, opRelease))
		}
	case shifted:
		t.thank(m, false, byID(opReschedule))
	case removed:
		t.judgeRemoval(m)
	case buried: // a Claim does it when the attempts are used up
		if m.was.attempt < maxAttempts || m.was.leased() && t.early(m) {
			t.thank(m, true, ends(m, opBury))
		}
	case revived:
		t.thank(m, false, byID(opRevive))
	case digUp:
		t.thank(m, false, byID(opCancel))
	}
}

// early says whether a task's time had not come by the server's clock.
func (t *tasksCheck) early(m *move) bool {
	_, latest := t.clock.at(m.span)
	return seconds(m.was.score) > latest+time.Millisecond
}

// judgeClaim: nothing is handed out before it is due, or before its lease has run
// out, by the server's clock at that time; and each delivery counts.
func (t *tasksCheck) judgeClaim(m *move) {
	t.judgeLease(m)
	given := m.is.score - lease.Seconds()
	was := m.was.settled()
	due := max(m.was.score, was.score) // a version that waited is due after the lease too
	if due > given+2e-6 {              // doubles have a quarter of a microsecond
		t.violation("%v was handed out %.6f s early at %v: %+v became %+v", m.taskKey, due-given, m.span, m.was, m.is)
	}
	if m.is.attempt != was.attempt+1 {
		t.violation("%v: attempt %d after %d at %v", m.taskKey, m.is.attempt, was.attempt, m.span)
	}
}

// judgeLease: a lease begins when it is given, by the server's clock.
func (t *tasksCheck) judgeLease(m *move) {
	earliest, latest := t.clock.at(m.span)
	given := seconds(m.is.score) - lease
	if given < earliest-settle || given > latest+settle {
		t.violation("%v: a lease from %v, given between %v and %v", m.taskKey, given, earliest, latest)
	}
}

// ends matches what was said with the receipt that was good then.
func ends(m *move, ops ...op) func(*record) bool {
	return func(r *record) bool {
		return slices.Contains(ops, r.Op) && (r.Score == m.was.score || r.Score == m.was.due)
	}
}

// byID matches what needs no receipt.
func byID(what op) func(*record) bool {
	return func(r *record) bool { return r.Op == what }
}

// thank finds who has asked for a change. With handled, that may be a Worker whose
// handler had the task.
func (t *tasksCheck) thank(m *move, handled bool, asked func(*record) bool) {
	for _, r := range t.ops[m.taskKey] {
		over := r.Result == done && r.Return < m.after
		if r.Call <= m.before && asked(r) && r.mayHaveBeen() && !over {
			return
		}
	}
	if r := t.handlers[receipt{m.taskKey, m.was.delivery}]; handled && r != nil && r.Call <= m.before {
		return
	}
	t.unasked(m)
}

func (t *tasksCheck) unasked(m *move) {
	t.violation("%v at %v was %s, and nobody has asked for it: %+v became %+v", m.taskKey, m.span, m.kind, m.was, m.is)
}

// judgeEnqueue: a version is put in because somebody did, and as the policy says.
func (t *tasksCheck) judgeEnqueue(m *move) {
	r := t.enqueued[m.is.version]
	if r == nil || r.Call > m.before || !r.mayHaveBeen() {
		t.unasked(m)
		return
	}
	if m.kind == replaced && m.was.leased() && t.early(m) {
		t.violation("%v at %v was replaced while somebody held it: %+v became %+v", m.taskKey, m.span, m.was, m.is)
	}
	due := m.is.score
	if m.kind == deferred {
		due = m.is.due
	}
	earliest, latest := t.clock.at(m.span)
	if at := seconds(due) - r.Delay; at < earliest-settle || at > latest+settle {
		t.violation("%v at %v is due at %v instead of %v after it was enqueued", m.taskKey, m.span, seconds(due), r.Delay)
	}
	if m.kind == replaced || m.kind == deferred && m.was.due != 0 {
		t.judgePolicy(m, sluice.Duplicates(r.Policy), due, m.was.settled().score)
	}
}

func (t *tasksCheck) judgePolicy(m *move, policy sluice.Duplicates, due, before float64) {
	if policy == sluice.Keep || policy == sluice.Earliest && due >= before || policy == sluice.Latest && due <= before {
		t.violation("%v at %v was %s against policy %d: %+v became %+v", m.taskKey, m.span, m.kind, policy, m.was, m.is)
	}
}

// judgeRemoval: a task goes because it was finished, cancelled or popped; and never
// while a version of it waits, unless it was cancelled.
func (t *tasksCheck) judgeRemoval(m *move) {
	_, latest := t.clock.at(m.span)
	handler := t.handlers[receipt{m.taskKey, m.was.delivery}]
	finished := ends(m, opDequeue)
	if m.was.due != 0 { // only the version that waited, if it has taken over, can be finished
		finished = func(r *record) bool { return r.Op == opDequeue && r.Score == m.was.due && !t.early(m) }
		handler = nil
	}
	switch {
	case m.queue == popQueue && seconds(m.was.settled().score) <= latest+time.Millisecond:
		// See checkGiven.
	case m.queue == workQueue && handler != nil && handler.Call <= m.before && handler.mayHaveBeen():
	default:
		t.thank(m, false, func(r *record) bool { return finished(r) || r.Op == opCancel })
	}
}

// checkEnqueues: what was acknowledged is in the witness, and what was refused is
// not.
func (t *tasksCheck) checkEnqueues() {
	for version, r := range t.enqueued {
		kept, written := t.versions[version]
		t.counts["enqueues "+string(r.Result)]++
		switch {
		case r.Result == done && r.Outcome == int(sluice.Kept):
			if written {
				t.violation("%s was kept out of %s, and got in", version, r.Name)
			}
		case r.Result == done && !written:
			if t.inGap(r.Call, r.Return) {
				t.counts["acknowledged tasks lost by everysec, excused"]++
			} else {
				t.violation("%s was acknowledged by %s (outcome %d), between %v and %v, and never written", version, r.Name, r.Outcome, r.Call, r.Return)
			}
		case r.Result == done && !kept:
			t.counts["acknowledged tasks cut off, excused"]++
		case !r.mayHaveBeen() && written:
			t.violation("%s was refused by %s (%s), and written", version, r.Name, r.Result)
		}
	}
}

// checkDeliveries: what was handed out is what the witness says, to one caller.
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
		if t.handedInGap(r) {
			continue // and then again, perhaps
		}
		if seen[at]++; seen[at] > max(1, len(from)) {
			t.violation("%v with receipt %.6f was handed out %d times", at.taskKey, at.score, seen[at])
		}
	}
}

// handedInGap says whether a task was handed out when acknowledged writes were lost. The
// receipt of a claim says when that was; its answer may have been long on its way.
func (t *tasksCheck) handedInGap(r *record) bool {
	if r.Op == opPop {
		return t.inGap(r.Call, r.Return)
	}
	return slices.ContainsFunc(t.gaps, func(g span) bool {
		earliest, latest := t.clock.at(g)
		claim := seconds(r.Delivery) - lease
		return earliest-settle <= claim && claim <= latest+settle
	})
}

func (t *tasksCheck) checkDelivery(r *record, moves []*move) {
	known := slices.ContainsFunc(moves, func(m *move) bool {
		if r.Op == opPop {
			return m.kind == removed && m.was.version == r.Version && m.was.settled().attempt == r.Attempt
		}
		return m.is.attempt == r.Attempt && m.is.version == r.Version
	})
	if !known && !t.handedInGap(r) {
		t.violation("%s of %s on %s to %s (%s, attempt %d, receipt %.6f): the witness doesn't know it", r.Op, r.ID, r.Name, r.Process, r.Version, r.Attempt, r.Score)
	}
}

// verdictKinds is what an operation with a receipt makes of a task.
var verdictKinds = map[op][]moveKind{
	opDequeue: {removed, tookOver},
	opRetry:   {retried, tookOver},
	opRelease: {released, tookOver},
	opBury:    {buried, tookOver},
	opExtend:  {extended},
}

// checkVerdicts: an operation with a receipt that returned nil was carried out, once.
func (t *tasksCheck) checkVerdicts() {
	taken := map[*move]bool{}
	for i := range t.records {
		r := &t.records[i]
		kinds, isVerdict := verdictKinds[r.Op]
		if !isVerdict || r.Result != done {
			continue
		}
		t.counts["receipts used"]++
		moves := t.used[receipt{taskKey{r.Name, r.ID}, r.Score}]
		at := slices.IndexFunc(moves, func(m *move) bool {
			return !taken[m] && slices.Contains(kinds, m.kind) && m.meets(r.Call, r.Return)
		})
		if at >= 0 {
			taken[moves[at]] = true
		} else if !t.inGap(r.Call, r.Return) {
			t.violation("%s of %s on %s by %s (receipt %.6f) returned nil at %v: the witness has none, or another has had it", r.Op, r.ID, r.Name, r.Process, r.Score, r.Return)
		}
	}
}

// yesKinds is what an operation by ID makes of a task, if it says yes.
var yesKinds = map[op][]moveKind{
	opCancel:     {removed, digUp},
	opReschedule: {shifted},
	opRevive:     {revived},
}

// checkByID: Cancel, Reschedule and Revive say yes if they did something.
func (t *tasksCheck) checkByID() {
	for i := range t.records {
		r := &t.records[i]
		kinds, ok := yesKinds[r.Op]
		if !ok || r.Result != done {
			continue
		}
		found := slices.ContainsFunc(t.moved[taskKey{r.Name, r.ID}], func(m *move) bool {
			return slices.Contains(kinds, m.kind) && m.meets(r.Call, r.Return)
		})
		if !found && !t.inGap(r.Call, r.Return) {
			t.violation("%s of %s on %s said yes at %v, and the witness doesn't know", r.Op, r.ID, r.Name, r.Return)
		}
	}
}

// stay is how long somebody had a task, by his own clock.
type stay struct {
	from, to time.Duration
	claim    *move
}

// checkHands: while a lease lasts, by the clock of who got it, nobody else has the
// task.
func (t *tasksCheck) checkHands() {
	for key, ops := range t.ops {
		var last stay
		for _, r := range ops { // by call: of two deliveries, the one that was asked for first
			claims := t.claims[receipt{key, r.Delivery}]
			if r.Op != opDelivery || len(claims) == 0 {
				continue
			}
			s := stay{r.Return, r.Call + lease, claims[0]}
			for _, other := range ops {
				if other.Delivery == r.Delivery && other.Op != opDelivery {
					s.to = min(s.to, other.Call) // it has begun to give it up
				}
			}
			if last.claim != nil && s.from < last.to && last.from < s.to && !t.mayBeTwice(last, s) {
				t.violation("%v was in two hands at once: claimed at %v and %v, each for %v", key, last.claim.span, s.claim.span, lease)
			}
			if s.to > last.to {
				last = s
			}
		}
	}
}

// mayBeTwice says whether a task may be in two hands: its lease was ended by the
// server's clock, or forgotten, or it was cancelled, of which the first will learn.
func (t *tasksCheck) mayBeTwice(a, b stay) bool {
	from, to := min(a.claim.after, b.claim.after), max(a.claim.before, b.claim.before)
	return t.strike(from, max(a.to, b.to)) || slices.ContainsFunc(t.moved[a.claim.taskKey], func(m *move) bool {
		return m.kind == removed && m.meets(from, to)
	})
}

// checkLeft: when all is quiet nothing is left but dead letters, whole ones.
func (t *tasksCheck) checkLeft() {
	for key, left := range t.end.tasks {
		switch {
		case left.queued:
			t.violation("%v is still there when all is quiet: %+v", key, left)
		case !left.dead || !left.kept || !left.buried:
			t.violation("%v is half there when all is quiet: %+v", key, left)
		default:
			t.counts["dead letters at the end"]++
		}
	}
}
