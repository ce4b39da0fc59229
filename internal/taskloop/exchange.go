package taskloop

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redisexec"
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
	source   Source
	answered chan<- *exchange
	over     <-chan struct{} // nothing reads answered any more

	sent     time.Time // just before
	giveUp   time.Time // it is not waited for any longer
	givenUp  bool      // that time has come: in a late answer no refusal counts
	reports  []Report
	reported [][]*delivery // of each report
	claim    int           // how many tasks it asks for; 0 for no claim
	dueEpoch int           // what was known of the queue, see demand

	results []ReportResult
	claimed ClaimResult
}

// Run sends the exchange.
func (x *exchange) Run() {
	x.results, x.claimed = x.source.Exchange(x.reports, x.claim)
	select {
	case x.answered <- x:
	case <-x.over:
	}
}

// dispositions is how many the exchange reports.
func (x *exchange) dispositions() (n int) {
	for _, deliveries := range x.reported {
		n += len(deliveries)
	}
	return n
}

// underWay is what is waited for: exchanges, dispositions in them, and tasks that they
// may bring.
func (l *loop) underWay() (exchanges, dispositions, asked int) {
	for _, x := range l.exchanges {
		if !x.givenUp {
			exchanges++
			dispositions += x.dispositions()
			asked += x.claim
		}
	}
	return exchanges, dispositions, asked
}

// exchange sends what there is to be sent, if it may. It reports whether that has changed
// what may be sent next.
func (l *loop) exchange(now time.Time) bool {
	if now.Before(l.health.retryAt) || !l.mayExchange(now) {
		return false
	}
	// Before the dispositions are taken off pending: in an outage they keep their runners
	// until Redis has taken them, see free.
	claim, before := l.claimable(now), len(l.pending)
	reports, reported := l.takeReports(now)
	if !l.demand.claimWanted && len(reports) == 0 {
		claim = 0
	}
	if claim == 0 && len(reports) == 0 {
		return len(l.pending) < before // some were dropped: their runners are free now
	}
	x := &exchange{
		source: l.Source, answered: l.exchanged, over: l.over,
		sent: now, giveUp: now.Add(min(max(l.Lease/3, minExchangeWait), maxExchangeWait)),
		reports: reports, reported: reported, claim: claim, dueEpoch: l.demand.dueEpoch,
	}
	l.demand.noteAsked(claim, now)
	l.exchanges = append(l.exchanges, x)
	l.Source.Start(x)
	return true
}

// mayExchange reports whether an exchange may go out. One may at any time. With many
// runners another one may be under way, if there is much to do: Redis deals with one half
// of the tasks while the handlers have the other. With few runners a second exchange would
// only make both groups smaller. In an outage there is one at a time, so that each failure
// is waited out.
func (l *loop) mayExchange(now time.Time) bool {
	switch exchanges, _, _ := l.underWay(); {
	case exchanges == 0:
		return true
	case exchanges > 1 || l.Concurrency < halvesFrom || l.health.isOut():
		return false
	}
	enough := l.Concurrency / 4
	return len(l.pending) >= enough || l.demand.backlogLikely && l.claimable(now) >= l.demand.worthAsking(enough)
}

// claimable is how many tasks the next claim is for: the free runners, but with many not
// more than half of them, so that two exchanges can take turns.
func (l *loop) claimable(now time.Time) int {
	if l.stopping != nil {
		return 0
	}
	most := l.Concurrency
	if most >= halvesFrom {
		most -= most / 2
	}
	return l.demand.size(min(l.free(), most, MaxGroup), now)
}

// takeReports groups what is pending by operation, and leaves what is too much for one
// exchange. A disposition that was sent before is dropped when its lease has ended: its
// own success could not be told from another claim's any more.
func (l *loop) takeReports(now time.Time) (reports []Report, reported [][]*delivery) {
	if len(l.pending) == 0 {
		return nil, nil
	}
	var groups [operations][]*delivery
	left := l.pending[:0]
	for _, d := range l.pending {
		if d.state != pending { // accepted by an answer that came late, or lost
			continue
		}
		if d.reported != never && !now.Before(d.until) {
			l.lose(d)
			continue
		}
		operation := operationOf[d.disposition.Action]
		if len(groups[operation]) == MaxGroup {
			left = append(left, d)
			continue
		}
		d.on(exchangeSent)
		d.reported = max(d.reported, sent)
		groups[operation] = append(groups[operation], d)
	}
	clear(l.pending[len(left):])
	l.pending = left
	// Those of one claim, which have the same receipt, are finished together.
	slices.SortStableFunc(groups[Finish], func(a, b *delivery) int { return strings.Compare(a.receipt, b.receipt) })
	for operation, group := range groups {
		if len(group) > 0 {
			reports = append(reports, Report{Operation(operation), toReport(group)})
			reported = append(reported, group)
		}
	}
	return reports, reported
}

// giveUp stops waiting for an exchange that had no answer in time. Its dispositions go out
// again.
func (l *loop) giveUp(x *exchange) {
	x.givenUp = true
	for _, deliveries := range x.reported {
		l.repeat(deliveries)
	}
	if x.claim > 0 {
		l.demand.noteDue()
		l.demand.noteUnanswered(x.claim, time.Now())
	} else {
		l.remove(x)
	}
	l.health.noteFailure(exchanging, context.DeadlineExceeded)
}

func (l *loop) remove(x *exchange) {
	l.exchanges = slices.DeleteFunc(l.exchanges, func(other *exchange) bool { return other == x })
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
			l.pending = append(l.pending, d)
		}
	}
}

// settle deals with the answer to an exchange. Of one that was given up only good news
// counts: of the dispositions that were not accepted there are other copies, and what its
// claim has brought is for no other runner.
func (l *loop) settle(x *exchange) {
	l.remove(x)
	var failed error
	note := func(err error) {
		if failed == nil {
			failed = err
		}
	}
	for i, r := range x.results {
		if x.givenUp {
			l.settleLate(x.reported[i], r)
		} else {
			note(l.settleReport(x.reported[i], r))
		}
	}
	if x.claim > 0 {
		note(l.settleClaim(x))
	}
	switch {
	case x.givenUp:
	case failed == errTooLate: //nolint:errorlint // compared, not tested
		l.health.noteFailure(claiming, failed)
	case failed != nil:
		l.health.noteFailure(exchanging, failed)
	default:
		l.noteSuccess(exchanging)
	}
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
	l.pending = slices.DeleteFunc(l.pending, func(d *delivery) bool { return d.state == settled })
}

func (l *loop) settleDelivery(d *delivery, answer Answer) {
	switch {
	case d.state == settled: // by another copy
	case answer.IsAccepted():
		l.accept(d, answer)
	case answer == Malformed:
		// Nothing else can be done with a task whose field is not the library's.
		d.disposition = Disposition{Action: SetAside, Reason: "malformed"}
		l.putBack([]*delivery{d})
		return
	case d.reported == ambiguous && time.Now().Before(d.until):
		// The receipt was used up while the lease was ours: by the copy of this
		// disposition whose reply was lost. (Or by a Cancel, which cannot be told apart.)
		l.accept(d, Accepted)
	default:
		l.stale(d, answer)
	}
	d.task.Payload = nil // the deliveries of one claim are one array: don't keep the payloads of all
}

// accept counts a disposition that was accepted. A task that was to be set aside, and has a
// waiting version, is gone: that version will be handed out, as after a retry.
func (l *loop) accept(d *delivery, answer Answer) {
	if !d.on(dispositionTaken) {
		return
	}
	l.forget(d)
	about := []any{slog.String("task", d.task.ID), slog.Int("attempt", d.task.Attempt), slog.String("error", d.disposition.Reason)}
	c := l.Counters
	switch d.disposition.Action {
	case Complete:
		c.Done.Add(1)
	case Retry:
		c.Retried.Add(1)
	case Release:
		c.Released.Add(1)
	case SetAside:
		if answer == TookOver {
			c.Retried.Add(1)
			l.Log.Warn("sluice: task failed for good, its waiting version takes over", about...)
			return
		}
		c.Buried.Add(1)
		l.Log.Warn("sluice: task buried", about...)
	}
}

// settleClaim takes what a claim has brought. The answer may come so late that the leases
// are over, or that the runners are taken: those tasks are given back. If another worker has
// them by now, that is stale, and they count as lost.
func (l *loop) settleClaim(x *exchange) error {
	now := time.Now()
	if x.claimed.Outcome != redisexec.Done {
		l.demand.noteDue()
		if x.claimed.Outcome == redisexec.Unknown && !x.givenUp {
			l.demand.noteUnanswered(x.claim, now)
		}
		return x.claimed.Err
	}
	tasks := x.claimed.Tasks
	tooLate := !now.Before(lease.SafeUntil(x.sent, l.Lease))
	switch {
	case x.givenUp:
	case tooLate && len(tasks) == 0:
	case tooLate:
		l.demand.noteUnanswered(x.claim, now)
	default:
		l.demand.noteAnswered(x.claim, len(tasks))
		l.health.reset(claiming)
	}
	if x.claimed.Err != nil {
		return x.claimed.Err // what was leased is due again after the lease
	}
	l.demand.noteClaimed(x.claimed.More || len(tasks) == x.claim, x.dueEpoch)
	l.hand(x, tooLate)
	if tooLate && len(tasks) > 0 {
		l.demand.noteDue()
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
	deliveries := make([]delivery, len(x.claimed.Tasks))
	for i := range deliveries {
		d := &deliveries[i]
		d.task = x.claimed.Tasks[i]
		d.receipt = x.claimed.Receipt
		d.leased(x.sent, l.Lease)
		if tooLate || l.stopping != nil || len(l.handling) == l.Concurrency || !time.Now().Before(d.until) {
			l.giveBack(d)
		} else {
			l.dispatch(d)
		}
	}
	l.dispatchedAt = time.Now()
	l.scheduleCheck(deliveries[0].renewAt)
	l.scheduleCheck(deliveries[0].until)
}
