package taskloop

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

const (
	// minExchangeWait and maxExchangeWait bound how long an exchange with Redis is waited for;
	// in between it is a third of the lease. A new connection takes several round trips.
	minExchangeWait = time.Second
	maxExchangeWait = 5 * time.Second
)

// exchange is a pipeline of reports and a claim. The loop makes it, a goroutine of
// Source.Start sends it, and the loop settles it:
//
//	takeReports → Source.Start → Run → exchanged → settle
//	                           ↘ no answer until giveUp: its dispositions go out again,
//	                             with the next exchange; a late answer is settled too
//
// To send a disposition twice is safe. It carries the same receipt, which the server accepts
// once; the second copy is answered "stale". That is why a stale answer counts as accepted
// if an earlier copy had no reply, as long as nothing else can have used the receipt up: the
// lease is not over (see settleDelivery).
//
// To claim twice is safe too, but not free: what the lost claim has leased is due again only
// when that lease ends, and the attempt counts. So a claim that is given up is still waited
// for in the background, and what it brings late is handed out. And after a claim without an
// answer the next ones ask for few tasks (see demand).
type exchange struct {
	loop  *loop
	queue *queue

	sent     time.Time // just before
	giveUp   time.Time // it is not waited for any longer
	givenUp  bool      // that time has come: in a late answer no refusal counts
	reports  []Report
	reported [][]*delivery // of each report
	each     time.Duration // what the queue was charged with for each of these tasks
	claim    int           // how many tasks it asks for; 0 for no claim
	reserved int           // how many runners are kept for them
	isProbe  bool          // it finds out whether an outage is over
	lapse    time.Time     // until then, if there are several queues
	dueEpoch int           // what was known of the queue, see demand

	results []ReportResult
	claimed ClaimResult
}

// Run sends the exchange.
func (x *exchange) Run() {
	x.results, x.claimed = x.queue.Source.Exchange(x.reports, x.claim)
	if o := x.queue.Observer; o != nil && len(x.claimed.Tasks) > 0 {
		o.Claimed(x.claimed.Tasks)
	}
	select {
	case x.loop.exchanged <- x:
	case <-x.loop.over:
	}
}

// dispositions is how many the exchange reports.
func (x *exchange) dispositions() (n int) {
	for _, deliveries := range x.reported {
		n += len(deliveries)
	}
	return n
}

// exchange sends what there is to be sent, if it may. It reports whether that has changed
// what may be sent next.
func (l *loop) exchange(now time.Time) bool {
	// The claim is chosen before the dispositions are taken off pending: in an outage they keep
	// their runners until Redis has taken them, see freeFor.
	q, claim := l.choose(now)
	if q == nil {
		return false
	}
	before := len(q.pending)
	reports, reported := l.takeReports(q, now)
	if !q.demand.claimWanted && len(reports) == 0 {
		claim = 0
	}
	if claim == 0 && len(reports) == 0 {
		return len(q.pending) < before // some were dropped: their runners are free now
	}
	l.send(&exchange{
		loop: l, queue: q,
		sent: now, giveUp: now.Add(min(max(q.Lease/3, minExchangeWait), maxExchangeWait)),
		reports: reports, reported: reported, claim: claim, dueEpoch: q.demand.dueEpoch,
	})
	return true
}

// send sends an exchange, and keeps runners for what it may bring. If there are several
// queues, and one of them does not answer, the others get the runners back soon: what comes
// later is handed out if there is one free.
func (l *loop) send(x *exchange) {
	q := x.queue
	q.underWay++
	q.asked = x.sent
	q.sending += x.dispositions()
	switch {
	case x.claim == 0:
	case len(l.queues) > 1 && q.health.isOut(): // what a probe brings is handed out if a runner is free
		x.isProbe = true
		q.client.probes++
		q.overdue++
	default:
		q.demand.noteAsked(x.claim, x.sent)
		x.reserved = x.claim
		l.reserve(q, x.claim)
		if len(l.queues) > 1 {
			x.lapse = x.sent.Add(l.lapsesAfter(q))
		}
	}
	l.deal(x)
	l.exchanges = append(l.exchanges, x)
	q.Source.Start(x)
}

// lapsesAfter is for how long an exchange keeps runners: for several times as long as one takes.
// Before the queue has answered any that is short: many that hang would have all runners in turn.
func (l *loop) lapsesAfter(q *queue) time.Duration { return max(4*q.usual, minLapse) }

// patienceWith is for how long an exchange holds back others: with several queues for twice as long
// as one takes, so that these do not use as many connections as they are.
func (l *loop) patienceWith(q *queue) time.Duration {
	if q.usual == 0 { // that is not known
		return mostPatience
	}
	return min(max(2*q.usual, leastPatience), mostPatience)
}

// lapse takes the runners back from exchanges that have not been answered for long.
func (l *loop) lapse(now time.Time) {
	for _, x := range l.exchanges {
		if x.reserved > 0 && !x.lapse.IsZero() && !now.Before(x.lapse) {
			l.reserve(x.queue, -x.reserved)
			x.reserved = 0
			x.queue.overdue++
		}
	}
}

// leaseEnds is when what its claim has leased is due again.
func (x *exchange) leaseEnds() time.Time { return x.sent.Add(x.queue.Lease) }

// isOverdue reports whether the exchange keeps no runners any more for what its claim may bring.
func (x *exchange) isOverdue() bool { return x.claim > 0 && x.reserved == 0 }

// stopWaiting notes that an exchange is not waited for any more: it was answered, or given up.
func (l *loop) stopWaiting(x *exchange) {
	q := x.queue
	q.underWay--
	q.sending -= x.dispositions()
	if x.isOverdue() {
		q.overdue--
	}
	if x.isProbe {
		q.client.probes--
	}
	l.reserve(q, -x.reserved)
	l.exchanges = slices.DeleteFunc(l.exchanges, func(other *exchange) bool { return other == x })
}

// takeReports groups what is pending of a queue by operation, and leaves what is too much for one
// exchange. A disposition that was sent before is dropped when its lease has ended: its
// own success could not be told from another claim's any more.
func (l *loop) takeReports(q *queue, now time.Time) (reports []Report, reported [][]*delivery) {
	if len(q.pending) == 0 {
		return nil, nil
	}
	var groups [store.Settlers][]*delivery
	left, size := q.pending[:0], 0
	for _, d := range q.pending {
		if d.state != pending { // accepted by an answer that came late, or lost
			continue
		}
		if d.reported != never && !now.Before(d.until) {
			l.lose(d)
			continue
		}
		settler, more := d.disposition.Settler(), d.disposition.Size()
		if len(groups[settler]) == store.MaxGroup || size > 0 && size+more > store.MaxGroupBytes {
			left = append(left, d)
			continue
		}
		size += more
		d.on(exchangeSent)
		d.reported = max(d.reported, sentOnce)
		groups[settler] = append(groups[settler], d)
	}
	l.setPending(q, left)
	// Those of one claim, which have the same receipt, are finished together.
	slices.SortStableFunc(groups[store.ByExchange], func(a, b *delivery) int { return strings.Compare(a.receipt, b.receipt) })
	for settler, group := range groups {
		if len(group) > 0 {
			reports = append(reports, Report{store.Settler(settler), toReport(group)})
			reported = append(reported, group)
		}
	}
	return reports, reported
}

// giveUp stops waiting for an exchange that had no answer in time. Its dispositions go out
// again.
func (l *loop) giveUp(x *exchange) {
	l.stopWaiting(x)
	x.givenUp = true
	for _, deliveries := range x.reported {
		l.repeat(deliveries)
	}
	q := x.queue
	if x.claim > 0 {
		l.late = append(l.late, x)
		q.demand.noteDue()
		q.demand.noteUnanswered(x.claim, time.Now())
	}
	q.health.noteFailure(exchanging, context.DeadlineExceeded)
	l.consider(q)
}

// repeat has dispositions sent again that may have been accepted. That is safe: the
// receipt is the same.
func (l *loop) repeat(deliveries []*delivery) {
	for _, d := range deliveries {
		d.reported = ambiguous
	}
	l.putBack(deliveries)
}

// putBack has dispositions sent again.
func (l *loop) putBack(deliveries []*delivery) {
	for _, d := range deliveries {
		if d.on(exchangeFailed) {
			l.addPending(d)
		}
	}
}

// settle deals with the answer to an exchange. Of one that was given up only good news
// counts: of the dispositions that were not accepted there are other copies, and what its
// claim has brought is for no other runner.
func (l *loop) settle(x *exchange) {
	q := x.queue
	if x.givenUp {
		l.late = slices.DeleteFunc(l.late, func(other *exchange) bool { return other == x })
	} else {
		l.stopWaiting(x)
	}
	var failed error
	for i, r := range x.results {
		if x.givenUp {
			l.settleLate(x.reported[i], r)
		} else {
			failed = cmp.Or(failed, l.settleReport(x.reported[i], r))
		}
	}
	if x.claim > 0 {
		failed = cmp.Or(failed, l.settleClaim(x))
	}
	switch {
	case x.givenUp:
	case failed == errTooLate: //nolint:errorlint // compared, not tested
		q.health.noteFailure(claiming, failed)
	case failed != nil:
		q.health.noteFailure(exchanging, failed)
	default:
		q.noteSuccess(exchanging)
		if len(l.queues) > 1 {
			q.noteExchange(time.Since(x.sent))
		}
	}
	l.consider(q)
}

// noteExchange notes how long an exchange has taken. One that takes much longer counts as twice as
// long: it says more of an outage than of what is usual.
func (q *queue) noteExchange(took time.Duration) {
	if q.usual == 0 {
		q.usual = max(took, 1)
		q.client.unknown--
		return
	}
	q.usual += (min(took, 2*q.usual+time.Millisecond) - q.usual) / 8
}

func (l *loop) settleReport(deliveries []*delivery, r ReportResult) error {
	switch {
	case r.Err == nil:
		for i, d := range deliveries {
			l.settleDelivery(d, r.Answers[i])
		}
	case r.Outcome == redisexec.Unknown || r.Outcome == redisexec.Done: // done, and the answer unreadable
		l.repeat(deliveries)
	default: // it was not carried out
		l.putBack(deliveries)
	}
	return r.Err
}

// settleLate takes the acceptances of dispositions that are to be sent again.
func (l *loop) settleLate(deliveries []*delivery, r ReportResult) {
	if r.Err != nil {
		return
	}
	for i, d := range deliveries {
		if r.Answers[i].IsAccepted() {
			l.accept(d, r.Answers[i])
		}
	}
	q := deliveries[0].queue // of all
	l.setPending(q, slices.DeleteFunc(slices.Clone(q.pending), func(d *delivery) bool { return d.state == settled }))
}

func (l *loop) settleDelivery(d *delivery, answer store.Answer) {
	switch {
	case d.state == settled: // by another copy
	case answer.IsAccepted():
		l.accept(d, answer)
	case answer == store.Malformed:
		// Nothing else can be done with a task whose field is not the library's.
		d.disposition = store.Disposition{Action: store.Bury, Reason: "malformed"}
		l.putBack([]*delivery{d})
		return
	case d.reported == ambiguous && time.Now().Before(d.until):
		// The receipt was used up while the lease was ours: by the copy of this
		// disposition whose reply was lost. (Or by a Cancel, which cannot be told apart.)
		l.accept(d, store.Accepted)
	default:
		l.stale(d, answer)
	}
	d.task.Payload, d.task.Header, d.disposition.Result = nil, nil, "" // the deliveries of one claim are one array: don't keep the payloads of all
}

// accept counts a disposition that was accepted. A task that was to be set aside, and has a
// waiting version, is gone: that version will be handed out, as after a retry.
func (l *loop) accept(d *delivery, answer store.Answer) {
	if !d.on(dispositionTaken) {
		return
	}
	d.queue.Policy.Accepted(d.task)
	about := []any{slog.String("task", d.task.ID), slog.Int("attempt", d.task.Attempt), slog.String("error", d.disposition.Reason)}
	ending, log := endingOf[d.disposition.Action], d.queue.Log
	switch {
	case ending == Buried && (answer == store.TookOver || d.disposition.Next != nil):
		ending = Retried
		log.Warn("sluice: task failed for good, its waiting version takes over", about...)
	case ending == Buried:
		log.Warn("sluice: task buried", about...)
	case ending == Discarded:
		log.Info("sluice: task discarded", about...)
	}
	if answer == store.Resultless {
		log.Warn("sluice: the server refused the task's result", about[:2]...)
	}
	l.decided(d, ending)
	l.tell(d)
}

// endingOf says what becomes of a task if an action is accepted.
var endingOf = [...]Ending{store.Finish: Done, store.Retry: Retried, store.Release: Released, store.Again: Again, store.Bury: Buried, store.Discard: Discarded, store.Expire: Expired}

// settleClaim takes what a claim has brought. The answer may come so late that the leases
// are over, or that the runners are taken: those tasks are given back. If another worker has
// them by now, that is stale, and they count as lost.
func (l *loop) settleClaim(x *exchange) error {
	q, now := x.queue, time.Now()
	l.giveBackCost(q, time.Duration(x.claim-len(x.claimed.Tasks))*x.each)
	if x.claimed.Outcome != redisexec.Done {
		q.demand.noteDue()
		if x.claimed.Outcome == redisexec.Unknown && !x.givenUp {
			q.demand.noteUnanswered(x.claim, now)
		}
		return x.claimed.Err
	}
	tasks := x.claimed.Tasks
	tooLate := !now.Before(lease.SafeUntil(x.sent, q.Lease))
	switch {
	case x.givenUp:
	case tooLate && len(tasks) == 0:
	case tooLate:
		q.demand.noteUnanswered(x.claim, now)
	default:
		q.demand.noteAnswered(x.claim, len(tasks))
		q.health.reset(claiming)
	}
	if x.claimed.Err != nil {
		return x.claimed.Err // what was leased is due again after the lease
	}
	more := x.claimed.More || len(tasks) == x.claim
	if len(l.queues) > 1 { // no turn is spent on a claim that would find nothing
		more = x.claimed.More || len(tasks) > 0 && x.claimed.Head.Off == 0
		q.brought = len(tasks)
	}
	q.demand.noteClaimed(more, x.dueEpoch)
	q.demand.limited = x.claimed.Limited
	l.hand(x, tooLate)
	if tooLate && len(tasks) > 0 {
		q.demand.noteDue()
		return errTooLate
	}
	return nil
}

// errTooLate is why a claim was of no use that had an answer.
var errTooLate = errors.New("the reply to a claim took longer than the lease")

// hand hands out what a claim has brought.
func (l *loop) hand(x *exchange, tooLate bool) {
	if len(x.claimed.Tasks) == 0 {
		return
	}
	l.dispatchedAt = time.Now()
	deliveries := make([]delivery, len(x.claimed.Tasks))
	for i := range deliveries {
		d := &deliveries[i]
		d.task = x.claimed.Tasks[i]
		d.receipt = x.claimed.Receipt
		d.queue = x.queue
		d.leased(x.sent, x.queue.Lease)
		d.charged = x.each
		if tooLate || l.isStopping() || !l.hasRunner(x) || !time.Now().Before(d.until) {
			l.giveBack(d)
		} else {
			l.dispatch(d)
		}
	}
	l.scheduleCheck(deliveries[0].renewAt)
	l.scheduleCheck(deliveries[0].until)
	l.scheduleStuck(x.queue)
}

// hasRunner reports whether there is a runner for a task that an exchange has brought. Others may
// have got those that were kept for it.
func (l *loop) hasRunner(x *exchange) bool {
	q := x.queue
	if x.isOverdue() {
		return l.freeOf(q) > 0
	}
	return l.occupied() < l.Concurrency && q.occupied() < l.most(q)
}
