// Package watch waits for due tasks of queues in Redis. All callers that wait at one queue share a
// [Watcher], and all queues on one client of go-redis share a [Client]: a pub/sub connection, and the
// looks at queues at which nothing happens.
//
// What a Watcher knows of its queue is a hint. A caller that is told of a task (its [Wait] returns) may find nothing, and
// waits again. To ask for a head is to claim because of it. To draw is to decide at random whether and when this client
// asks.
package watch

import (
	"context"
	"time"

	"github.com/sluice-go/sluice/internal/notify"
)

// watch is the goroutine of a Watcher. It runs from the first caller to the last.
type watch struct {
	watcher *Watcher
	began   time.Time
	stop    context.CancelFunc
	changed chan struct{}   // cap 1: a claim has changed the outlook
	found   chan lookResult // cap 1: by a planned look
}

// start starts a watch. It ends when the last caller is told or has left, or when a look fails. Callers wait for what it
// tells them, and not for its end. The mutex is held.
func (w *Watcher) start() {
	ctx, stop := context.WithCancel(context.Background())
	w.current = &watch{
		watcher: w, began: time.Now(), stop: stop,
		changed: make(chan struct{}, 1), found: make(chan lookResult, 1),
	}
	go w.current.run(ctx)
}

// run subscribes, and takes turns until the watch is stopped or a look fails.
func (w *watch) run(ctx context.Context) {
	defer w.stop()
	watcher := w.watcher
	n, q := watcher.client.Notifier, &watcher.queue
	listener := n.JoinHearing(q.Channel, watcher.heard)
	defer n.Leave(q.Channel, listener)
	counted := n.JoinBriefly(q.Idle)
	defer n.Leave(q.Idle, counted)
	defer watcher.client.looker.cancel(w)
	select {
	case <-listener.C: // the mark that resume takes has it
	default:
	}
	watcher.resume()
	for err := error(nil); err == nil; {
		err = w.turn(ctx, listener)
		if err != nil && ctx.Err() == nil {
			watcher.fail(w, err)
		}
	}
}

// turn does what is due, and waits for one event. The error is that of a look, or ctx's.
func (w *watch) turn(ctx context.Context, listener *notify.Listener) error {
	watcher := w.watcher
	o, isCurrent := watcher.next(w)
	if !isCurrent {
		return context.Canceled
	}
	alarm := o.askAt
	switch {
	case o.known: // nothing else is expected: others' queues may be looked at at the same time
		watcher.client.looker.plan(w, o.lookAt)
	case !o.lookAt.After(time.Now()):
		return w.lookAlone(ctx)
	default:
		alarm = o.lookAt
	}
	var due <-chan time.Time
	if !alarm.IsZero() {
		timer := time.NewTimer(time.Until(alarm))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-listener.C:
		watcher.notified()
	case <-w.changed:
	case <-due:
	case r := <-w.found:
		if r.head.Failed {
			return w.lookAlone(ctx)
		}
		watcher.looked(r)
	case <-ctx.Done():
	}
	return ctx.Err()
}

// lookAlone looks at the queue, and tries again where that may help.
func (w *watch) lookAlone(ctx context.Context) error {
	watcher := w.watcher
	client := watcher.client
	r := lookResult{mark: watcher.Mark(), sent: time.Now()}
	request := watcher.Look()
	request.Bounded = true
	reply, err := client.looker.executor.Run(ctx, request)
	if err != nil {
		if watcher.claimsWork(err) {
			return nil
		}
		return err
	}
	heads, err := client.scripts.Heads(reply.Value, 1)
	if err != nil {
		return err
	}
	r.head = heads[0]
	watcher.looked(r)
	return nil
}
