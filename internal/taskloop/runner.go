package taskloop

import (
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/background"

	"github.com/sluice-go/sluice/internal/store"
)

// runner is a goroutine that runs handlers, one after the other, until the loop ends. The
// loop starts as many as have been needed at once.
//
// A handler, or the policy, may call runtime.Goexit, which cannot be stopped: the deferred
// function then decides, and another runner takes over.
func (l *loop) runner() {
	var current *delivery // handed to the policy, and not delivered yet
	handled := false      // its handler has returned
	defer func() {
		if current == nil {
			return
		}
		defer func() {
			l.deliver(current)
			// It ends as this one would have, and Run waits in the same way.
			go l.runner()
		}()
		policy := current.queue.Policy
		current.disposition = policy.Fallback(current.task)
		if !handled {
			current.disposition = policy.Decide(current.ctx, current.task, ErrExited)
		}
	}()
	for d := range l.work {
		// The lease was lost, or the task cancelled, before the handler was called; or the process
		// was stopped meanwhile, and the loop has not noticed.
		if d.ctx.Err() != nil || !d.hold.Valid() {
			d.disposition = store.Disposition{Action: store.Release}
			l.deliver(d)
			continue
		}
		current, handled = d, false
		err := d.queue.handle(d)
		handled = true
		d.disposition = d.queue.Policy.Decide(d.ctx, d.task, err)
		current = nil
		l.deliver(d)
	}
}

func (q *queue) handle(d *delivery) error {
	q.Counters.Running.Add(1)
	defer q.Counters.Running.Add(-1)
	if q.Observer == nil {
		d.begin(q.Timeout)
		return q.Policy.Handle(d.ctx, d.task)
	}
	o := &observed{ctx: d.ctx, err: ErrExited}
	d.observed = o
	o.ctx = q.Observer.Started(d.ctx, d.task)
	d.begin(q.Timeout)
	defer func() { o.took = time.Since(d.called) }()
	o.err = q.Policy.Handle(o.ctx, d.task)
	return o.err
}

// deliver passes a delivery on to the loop. If that has ended, the delivery is the runner's, and
// nothing more can be done for the task.
func (l *loop) deliver(d *delivery) {
	if len(l.queues) > 1 && !d.called.IsZero() {
		d.took = max(time.Since(d.called), 1)
	}
	d.hold.Return() // and is not stuck
	d.cancel(nil)
	if !l.completions.put(d) {
		l.leave(d)
	}
}

// decided notes and counts what has become of a task.
func (l *loop) decided(d *delivery, e Ending) {
	d.ending = e
	d.queue.Counters.Ended[e].Add(1)
}

// leave gives up a delivery whose handler has returned, when the loop ends or has ended.
func (l *loop) leave(d *delivery) {
	if d.on(leaseLost) {
		l.decided(d, Lost)
	}
	d.unstick()
	l.tell(d)
}

// tell tells the Observer what has become of a task, once its handler has returned: until then,
// what is observed is the runner's.
func (l *loop) tell(d *delivery) {
	if o := d.observed; o != nil {
		d.observed = nil
		d.queue.Observer.Finished(o.ctx, d.task, Finished{o.took, o.err, d.ending})
	}
}

// completions is where runners put deliveries whose handlers have returned. The loop takes
// all of them at once.
type completions struct {
	ready chan struct{} // cap 1: signalled by the first one in

	mu         sync.Mutex // guards what follows
	deliveries []*delivery
	closed     bool
}

// put reports whether the loop is still there to take the delivery.
func (c *completions) put(d *delivery) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.deliveries = append(c.deliveries, d)
	if len(c.deliveries) == 1 {
		background.Signal(c.ready)
	}
	return true
}

// take returns what is there. spare is a slice that is not needed any more.
func (c *completions) take(spare []*delivery) []*delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	deliveries := c.deliveries
	c.deliveries = spare[:0]
	return deliveries
}

// close returns what is there.
func (c *completions) close() []*delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return c.deliveries
}
