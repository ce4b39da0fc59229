package taskloop

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/sluice-go/sluice/internal/lease"
)

// A handler is stuck when it has not returned for Grace after it was due: after the queue's
// Timeout, or sooner if it has called lease.WithTimeout. Its task is given up, as one whose lease
// is lost, and its place is given to another one as long as no more are replaced than may run:
// there are twice as many handlers as Concurrency at most. Those that were replaced when there were
// more places stay so.

// ErrStuck is the cause with which a handler's context ends when it is stuck, if it has not ended
// before.
var ErrStuck = fmt.Errorf("%w: the handler is stuck", lease.ErrLost)

// begin notes that the handler is called, and when it is due. The loop knows of called once there
// is such a time.
func (d *delivery) begin(timeout time.Duration) {
	d.called = time.Now()
	if timeout > 0 {
		d.hold.SetDeadline(d.called.Add(timeout))
	}
}

// occupied is how many places are taken.
func (l *loop) occupied() int { return len(l.handling) - l.replaced }

// occupied is how many of them the queue has.
func (q *queue) occupied() int { return q.handling - q.replaced }

// scheduleStuck has the handlers checked that are called now. Those that are due before the queue's
// Timeout are checked with their leases.
func (l *loop) scheduleStuck(q *queue) {
	if q.Timeout > 0 {
		l.scheduleCheck(l.dispatchedAt.Add(q.Timeout).Add(l.Grace))
	}
}

// checkStuck finds out whether a handler is stuck, whatever the state of its delivery, or schedules
// the next check.
func (l *loop) checkStuck(d *delivery, now time.Time) {
	deadline := d.hold.Deadline()
	switch at := deadline.Add(l.Grace); {
	case d.stuck:
		l.replace(d)
	case deadline.IsZero():
	case now.Before(at):
		l.scheduleCheck(at)
	default:
		l.stick(d, now)
		l.replace(d)
	}
}

// stick gives up a delivery whose handler is stuck, and tells of it.
func (l *loop) stick(d *delivery, now time.Time) {
	d.stuck = true
	d.queue.active--
	q, running := d.queue, now.Sub(d.called)
	q.Counters.Stuck.Add(1)
	l.abandon(d, Lost, ErrStuck)
	q.Log.Warn("sluice: handler is stuck", slog.String("task", d.task.ID), slog.Int("attempt", d.task.Attempt), slog.Duration("running", running))
	if d.observed != nil {
		q.Observer.Stuck(d.observed.ctx, d.task, running)
	}
}

// replace gives the place of a stuck handler to another one, unless as many are replaced as may
// run.
func (l *loop) replace(d *delivery) {
	q := d.queue
	if !d.replaced && l.replaced < l.Concurrency && q.replaced < l.most(q) {
		l.countRunning(d, -1)
		l.settleCost(d, time.Since(d.began))
		d.replaced = true
		l.replaced++
		q.replaced++
		l.consider(q)
	}
}

// unstick notes that a handler has returned, which may have been stuck: another stuck one may be
// replaced instead.
func (l *loop) unstick(d *delivery) {
	if d.replaced {
		l.replaced--
		d.queue.replaced--
		l.scheduleCheck(time.Now())
	}
	d.unstick()
}

// unstick counts a handler as stuck no more.
func (d *delivery) unstick() {
	if d.stuck {
		d.stuck = false
		d.queue.Counters.Stuck.Add(-1)
	}
}
