package taskloop

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redisexec"
)

// extension is a batch of lease extensions of one shard, sent in one pipeline.
type extension struct {
	feed       *feed
	sent       time.Time // just before
	deliveries []*delivery
	results    []ExtendResult
}

// scheduleCheck has the leases checked, at the latest then.
func (l *loop) scheduleCheck(at time.Time) { l.nextCheck = sooner(l.nextCheck, at) }

// checkLeases extends the leases for which it is time, gives up those that have ended, and
// schedules the next check.
func (l *loop) checkLeases(now time.Time) {
	l.nextCheck = time.Time{}
	var feeds []*feed // that have some to be extended
	for _, d := range l.handling {
		f := l.feedOf(d)
		switch {
		case d.state == lost:
			continue
		case !now.Before(d.until):
			l.lose(d)
			continue
		case f.extension != nil: // when it is over, the leases are checked
		case !now.Before(d.renewFrom):
			if len(f.toExtend) == 0 {
				feeds = append(feeds, f)
			}
			f.toExtend = append(f.toExtend, d)
		default:
			l.scheduleCheck(d.renewAt)
		}
		l.scheduleCheck(d.until)
	}
	for _, f := range feeds {
		l.extend(f, now, f.toExtend)
		f.toExtend = nil
	}
}

// extend extends leases of tasks of one shard, in a goroutine of its own. It is given half of what is left of
// the most pressing one, so that there is always another try.
func (l *loop) extend(f *feed, now time.Time, due []*delivery) {
	x := &extension{feed: f, sent: now, deliveries: due}
	pressing := slices.MinFunc(due, func(a, b *delivery) int { return a.until.Compare(b.until) })
	budget := lease.Budget(pressing.until.Sub(now))
	f.extension = x
	l.extensions++
	items := toExtend(due)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), budget)
		defer cancel()
		x.results = l.Source.Extend(ctx, f.shard, items)
		select {
		case l.extended <- x:
		case <-l.over:
		}
	}()
}

// handleExtension deals with the results of an extension.
func (l *loop) handleExtension(x *extension) {
	f := x.feed
	f.extension = nil
	l.extensions--
	var failed error
	for i, r := range x.results {
		if err := l.handleExtended(x.deliveries[i], x.sent, r); err != nil && failed == nil {
			failed = err
		}
	}
	l.scheduleCheck(time.Now()) // for extensions that became due meanwhile
	if failed != nil {
		f.health.noteFailure(renewing, failed)
	} else {
		f.noteSuccess(renewing)
	}
}

// handleExtended deals with the result of one extension. If the handler has returned
// meanwhile, the disposition may have used the receipt up: that it is not good says nothing
// then, and the answer to the disposition says what has become of it.
func (l *loop) handleExtended(d *delivery, sent time.Time, r ExtendResult) error {
	switch {
	case d.state == settled || d.state == lost:
		return r.Err
	case errors.Is(r.Err, ErrMoved): // it goes to the task's new shard at once
		return nil
	case r.Outcome != redisexec.Done || r.Err != nil:
		d.retryExtension(time.Now(), l.Lease)
		return r.Err
	case r.Answer == Accepted:
		d.leased(sent, l.Lease)
		if d.announced.After(sent) {
			d.renewNow() // the message came while the extension was under way
		} else {
			d.announced = time.Time{} // refuted
		}
	case d.state == handling:
		l.stale(d, r.Answer)
	}
	return nil
}

// checkCanceled has the lease of a task extended at once that is said to be cancelled: if it
// was, the answer says so. That the message is true, and not from before this delivery, is not
// taken for granted: an extension that is accepted refutes it.
func (l *loop) checkCanceled(id string) {
	now := time.Now()
	for d := l.byID[id]; d != nil; d = d.older {
		d.announced = now
		if d.state == handling {
			d.renewNow()
			l.scheduleCheck(now)
		}
	}
}

// stale gives up a delivery whose receipt is not good. It was cancelled if the task is not
// there at all while the lease is ours, for no other worker can have finished it; or if a
// message said so, for it may have been enqueued again since.
func (l *loop) stale(d *delivery, answer Answer) {
	if (answer == Gone || !d.announced.IsZero()) && time.Now().Before(d.until) {
		l.cancel(d)
	} else {
		l.lose(d)
	}
}

// remember has a delivery found by its task's ID. There may be an older one of that ID, which
// does not know yet that it is over: the task was cancelled and enqueued again, or the answer
// to its disposition is still on its way.
func (l *loop) remember(d *delivery) {
	d.older = l.byID[d.task.ID]
	l.byID[d.task.ID] = d
}

// forget ends that: the delivery is over.
func (l *loop) forget(d *delivery) {
	newest := l.byID[d.task.ID]
	switch {
	case newest != d:
		for at := newest; at != nil; at = at.older {
			if at.older == d {
				at.older = d.older
			}
		}
	case d.older != nil:
		l.byID[d.task.ID] = d.older
	default:
		delete(l.byID, d.task.ID)
	}
	d.older = nil
}
