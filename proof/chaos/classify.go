package main

// classify returns the kind of operation that changes a task from was to is; "" if they are
// equal. Only an enqueue may write a payload, or what comes next of a periodic task. One that waits
// in its group is changed as one in the queue is, besides being put there and back.
func classify(was, is task) moveKind {
	was, is = was.alive(), is.alive()
	waited, waits := was.waits != 0, is.waits != 0
	if waited && !waits && !is.queued && is.there() || waits && (is.queued || is.dead) {
		return unexplained // neither here nor there
	}
	was, is = was.inQueue(), is.inQueue()
	if (waited || waits) && is.lease == 0 && alike(was.score, is.score) {
		was.score = is.score // the due time of a member has whole microseconds
	}
	kind := classifyBoth(was, is)
	switch {
	case kind == "" && waited && !waits:
		return promoted
	case kind == "" && !waited && waits:
		return displaced
	}
	return kind
}

// classifyBoth is classify of tasks in the queue.
func classifyBoth(was, is task) moveKind {
	written := is.writes - was.writes
	was.writes, is.writes = 0, 0
	kind := classifyChange(was, is)
	waited := kind == unexplained && was.attempt > 0 || kind == rescheduled && !was.kept // to be retried, or put back as if not claimed
	again := waited && was.lease == 0 || was.leased() && was.due == 0                    // one that waits is enqueued again; one that was handled early keeps its place
	if written > 0 && again && was.queued && is.queued && !is.kept && is.version == was.version {
		return replaced
	}
	if written > 0 && kind != added && kind != replaced && kind != deferred {
		return unexplained
	}
	return kind
}

func classifyChange(was, is task) moveKind {
	was.delivery, is.delivery = 0, 0
	switch {
	case was == is:
		return ""
	case was.broken || is.broken:
		return unexplained
	case was.queued && is.queued && !was.dead && !is.dead:
		return classifyQueued(was, is)
	case was.queued && !is.there():
		return removed
	case was.queued && !is.queued && is.dead && is.buried:
		return buried
	case was.queued:
		return unexplained
	case was.dead && !is.there():
		return deadRemoved
	case !is.queued || is.dead || is.attempt != 0 || is.lease != 0 || is.due != 0:
		return unexplained
	case was.dead && is.version == was.version:
		return revived
	}
	return added
}

// classifyQueued is classify for a task that is in the queue before and after.
func classifyQueued(was, is task) moveKind {
	same := is.version == was.version
	plain := is.lease == 0 && is.due == 0
	switch {
	case is.leased() && is.score != was.score && same:
		return classifyLease(was, is)
	case is.leased() && was.leased() && is.score == was.score && is.due != 0 && is.attempt == was.attempt:
		if same {
			return rescheduled
		}
		return deferred
	case plain && is.attempt == 0 && !same:
		return replaced
	case !same:
		return unexplained
	case was.due != 0 && plain && is.attempt == 0 && was.waitsFor(is.score):
		return tookOver
	case was.due != 0 && plain && is.attempt == 0, was.due == 0 && is.field == was.field:
		return rescheduled
	case was.leased() && was.due == 0 && plain && is.attempt == was.attempt:
		return retried
	case was.leased() && was.due == 0 && plain && is.attempt == was.attempt-1:
		return released
	}
	return unexplained
}

// waitsFor says whether the version that waits is due then when it has taken over: at its time or,
// if a receipt of the version before is less than a tenth of a millisecond after that, a
// microsecond or two after the receipt.
func (t task) waitsFor(score float64) bool {
	follows := func(receipt float64) bool {
		return t.due <= receipt && receipt-t.due < 1e-4 && score > receipt && score-receipt < 3e-6
	}
	return score == t.due || follows(t.lease) || follows(t.token)
}

// classifyLease is classify for a task that gets a lease.
func classifyLease(was, is task) moveKind {
	switch {
	case was.leased() && is.token == was.token && is.due == was.due && is.attempt == was.attempt && is.unseen == was.unseen:
		return extended
	case is.due == 0: // checkClaim checks the attempt
		return claimed
	}
	return unexplained
}
