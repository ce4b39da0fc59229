package taskloop

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/lease"

	"github.com/sluice-go/sluice/internal/store"
)

// mostExtensions is how many extensions are under way for one queue at most.
const mostExtensions = 4

// extensionPause is the pause between extensions beyond so many.
const extensionPause = time.Millisecond

// extension is a batch of lease extensions of one queue, sent as one script.
type extension struct {
	queue      *queue
	sent       time.Time // just before
	deliveries []*delivery
	result     ReportResult
}

// extensionSlots is how many extensions go out at a time for one queue. Each has up to
// store.MaxGroup leases, so that a slow server costs few leases a try, and a connection that hangs
// only those that it was given.
func (l *loop) extensionSlots() int {
	return min(1+l.Concurrency/(store.MaxGroup*len(l.queues)), mostExtensions)
}

// scheduleCheck has the leases checked, at the latest then.
func (l *loop) scheduleCheck(at time.Time) { l.nextCheck = backoff.Sooner(l.nextCheck, at) }

// checkLeases finds the leases that are to be extended, gives up those that have ended and those of
// handlers that are stuck, and schedules the next check.
func (l *loop) checkLeases(now time.Time) {
	l.nextCheck = time.Time{}
	for _, d := range l.handling {
		l.checkStuck(d, now)
		switch {
		case d.state == lost:
			continue
		case !now.Before(d.until):
			l.lose(d)
			continue
		case d.extending:
		case !now.Before(d.renewFrom):
			l.extendSoon(d)
		default:
			l.scheduleCheck(d.renewAt)
		}
		l.scheduleCheck(d.until)
	}
}

// extendSoon has the lease extended as soon as there is a slot.
func (l *loop) extendSoon(d *delivery) {
	d.extending = true
	q := d.queue
	l.list(q, extenders)
	q.toExtend, q.unsorted = append(q.toExtend, d), true
}

// extend sends extensions, as many as may be under way.
func (l *loop) extend() {
	l.nextExtension = time.Time{}
	for i := 0; i < len(l.lists[extenders]); {
		q := l.lists[extenders][i]
		for len(q.toExtend) > 0 && q.extensions < l.extensionSlots() && l.mayExtend() {
			l.sendExtension(q)
		}
		if len(q.toExtend) > 0 {
			i++
		} else {
			l.drop(extenders, i)
		}
	}
}

// mayExtend reports whether an extension may go out beside those under way: more than a few go one
// by one, so that a loop with many queues does not use as many connections at once.
func (l *loop) mayExtend() bool {
	if next := l.extendedAt.Add(extensionPause); l.extensions >= mostExtensions && time.Now().Before(next) {
		l.nextExtension = next
		return false
	}
	return true
}

// sendExtension sends the extensions of the most pressing leases, in a goroutine of its own. Its
// timeout is half of what is left of the lease that ends first, so that there is always another
// try. The goroutine ends by then; Run waits for it, until lastWait is over.
func (l *loop) sendExtension(q *queue) {
	if q.unsorted {
		q.unsorted = false
		slices.SortFunc(q.toExtend, func(a, b *delivery) int {
			return cmp.Or(a.until.Compare(b.until), strings.Compare(a.receipt, b.receipt))
		})
	}
	x := &extension{queue: q, sent: time.Now()}
	l.extendedAt = x.sent
	var items []store.Item // without the dispositions, which are still the runners'
	taken := 0
	for taken < len(q.toExtend) && len(x.deliveries) < store.MaxGroup {
		d := q.toExtend[taken]
		taken++
		if d.state == handling {
			x.deliveries, items = append(x.deliveries, d), append(items, store.Item{ID: d.task.ID, Receipt: d.receipt})
		} else {
			d.extending = false // its disposition is on its way, or it is over
		}
	}
	if q.toExtend = q.toExtend[taken:]; len(q.toExtend) == 0 {
		q.toExtend = nil
	}
	if len(x.deliveries) == 0 {
		return
	}
	q.extensions++
	l.extensions++
	budget := lease.Budget(x.deliveries[0].until.Sub(x.sent))
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), budget)
		defer cancel()
		x.result = q.Source.Extend(ctx, items)
		select {
		case l.extended <- x:
		case <-l.over:
		}
	}()
}

// handleExtension deals with the result of an extension.
func (l *loop) handleExtension(x *extension) {
	q, r := x.queue, x.result
	q.extensions--
	l.extensions--
	for i, d := range x.deliveries {
		d.extending = false
		l.handleExtended(d, x.sent, r, i)
		if d.state == handling {
			l.scheduleCheck(d.renewAt)
			l.scheduleCheck(d.until)
		}
	}
	if r.Err != nil {
		q.failed = true
		q.health.noteFailure(renewing, r.Err)
	} else if !q.failed {
		q.noteSuccess(renewing)
	}
	if q.extensions == 0 && len(q.toExtend) == 0 {
		q.failed = false
	}
}

// handleExtended deals with what became of the i-th lease of an extension. If the handler has
// returned meanwhile, the disposition may have used the receipt up: that it is not good says
// nothing then, and the answer to the disposition says what has become of it.
func (l *loop) handleExtended(d *delivery, sent time.Time, r ReportResult, i int) {
	switch {
	case d.state == settled || d.state == lost:
	case r.Err != nil:
		d.retryExtension(time.Now(), d.queue.Lease)
	case r.Answers[i] == store.Accepted:
		d.leased(sent, d.queue.Lease)
		if d.announced.After(sent) {
			d.renewNow() // the message came while the extension was under way
		} else {
			d.announced = time.Time{} // refuted
		}
	case d.state == handling:
		l.stale(d, r.Answers[i])
	}
}

// checkCanceled has the lease of a task extended at once that is said to be cancelled: if it
// was, the answer says so. That the message is true, and not from before this delivery, is not
// taken for granted: an extension that is accepted refutes it.
func (l *loop) checkCanceled(id string) {
	now := time.Now()
	for _, d := range l.handling {
		if d.task.ID == id && d.state == handling {
			d.announced = now
			if !d.extending {
				l.extendSoon(d)
			}
		}
	}
	for d := range l.unreported {
		if d.task.ID == id {
			d.announced = now
		}
	}
}

// stale gives up a delivery whose receipt is not good. It was cancelled if the task is not
// there at all while the lease is ours, for no other worker can have finished it; or if a
// message said so, for it may have been enqueued again since.
func (l *loop) stale(d *delivery, answer store.Answer) {
	if (answer == store.Gone || !d.announced.IsZero()) && time.Now().Before(d.until) {
		l.cancel(d)
	} else {
		l.lose(d)
	}
}
