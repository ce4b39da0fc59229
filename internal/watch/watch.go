// Package watch waits for due tasks of queues in Redis. All callers that wait at one queue share a
// [Watcher], and all queues on one client of go-redis share a [Client]: a pub/sub connection, and
// the looks at queues at which nothing happens.
//
// Clients that have room for tasks stand in a line on the server, and scripts tell one of them of a
// task: see lua/shared/queue_idle.lua. What a Watcher knows of its queue is a hint. A caller that
// is told of a task (its [Wait] returns) may find nothing, and waits again. To ask for a head is to
// claim because of it.
package watch

import (
	"context"
	"time"

	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/store"
)

// watch is the goroutine of a Watcher. It runs while callers wait, and a little longer.
type watch struct {
	watcher *Watcher
	changed chan struct{}   // cap 1: a claim has changed the outlook
	found   chan lookResult // cap 1: by a planned look
}

// start starts a watch. It ends passOnAfter after the last caller has left, or when a look fails.
// Callers wait for what it tells them, and not for its end. The mutex is held.
func (w *Watcher) start() {
	if len(w.waiters) == 0 {
		w.aloneSince = time.Now()
	}
	w.current = &watch{watcher: w, changed: make(chan struct{}, 1), found: make(chan lookResult, 1)}
	go w.current.run()
}

// run subscribes, and takes turns until it is over or a look fails.
func (w *watch) run() {
	watcher := w.watcher
	n := watcher.client.Notifier
	listener := n.Join(watcher.channel, watcher.heard)
	defer n.Leave(watcher.channel, listener)
	defer watcher.client.looker.cancel(w)
	select {
	case <-listener.C: // the mark that resume takes has it
	default:
	}
	watcher.resume()
	for {
		o, act := watcher.next(w)
		if act == end {
			return
		}
		if err := w.turn(o, act, listener); err != nil {
			watcher.fail(w, err)
		}
	}
}

// turn does what is due, and waits for one event. The error is that of a look.
func (w *watch) turn(o outlook, act action, listener *notify.Listener) error {
	watcher, alarm := w.watcher, o.askAt
	switch {
	case act == passOn:
		return w.leaveLine()
	case act == waitForCaller:
		alarm = o.lookAt
	case o.known: // nothing else is expected: others' queues may be looked at at the same time
		watcher.client.looker.plan(w, o.lookAt)
	case !o.lookAt.After(time.Now()):
		return w.lookAlone()
	default:
		alarm = o.lookAt
	}
	var due <-chan time.Time
	if !alarm.IsZero() {
		due = time.After(time.Until(alarm))
	}
	select {
	case <-listener.C:
		watcher.notified()
	case <-w.changed:
	case <-due:
	case r := <-w.found:
		if r.head.Failed || r.head.Place == store.Out && r.mark.Confirmed { // where it is not subscribed, it has asked for no place
			return w.lookAlone()
		}
		watcher.looked(r)
	}
	return nil
}

// lookAlone looks at the queue, and tries again where that may help.
func (w *watch) lookAlone() error {
	watcher := w.watcher
	client := watcher.client
	defer client.lookingAlone()()
	r := lookResult{mark: watcher.Mark(), sent: time.Now()}
	request := client.Scripts.Look([]store.Looking{watcher.looking(r.mark)})
	request.Bounded = true
	reply, err := client.Executor.Run(context.Background(), request)
	if err != nil {
		if watcher.claimsWork(err) {
			return nil
		}
		return err
	}
	heads, err := store.DecodeHeads(reply.Value, 1)
	if err != nil {
		return err
	}
	r.head = heads[0]
	watcher.looked(r)
	return nil
}

// leaveLine takes the client out of the line, for which no caller waits any more. Others see to the
// head.
func (w *watch) leaveLine() error {
	client := w.watcher.client
	request := client.Scripts.Look([]store.Looking{{Queue: w.watcher.queue, Client: w.watcher.name(w.watcher.Mark()), Leaves: true}})
	request.Bounded = true
	_, err := client.Executor.Run(context.Background(), request)
	w.watcher.left()
	return err
}
