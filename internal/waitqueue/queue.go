package waitqueue

import (
	"sync"
	"time"
)

// lock locks the mutex that guards the queue, and returns it.
func (q *queue[V]) lock() *sync.Mutex {
	q.stripe.mu.Lock()
	return &q.stripe.mu
}

// The methods that follow are called with that mutex held, except those that say otherwise.

// join adds w to the queue, and returns its turn. With try it does not add it behind another
// waiter.
func (q *queue[V]) join(w *Waiter[V], try bool) Turn {
	// An alarm that is set looks after the head itself, and spares most callers the clock.
	if q.held && (try || q.alarm == nil) && expired(q.head) {
		q.promoteNext() // without the head, which has forgotten what it held
	}
	switch {
	case q.head == nil:
		q.head = w
		q.stripe.busy++
		return Acquire
	case try && q.held:
		q.tried = true
		q.watch(w, q.head.holder.Deadline())
		return Busy
	case try:
		return Busy
	}
	w.turn = q.stripe.channel()
	q.waiting.push(w)
	// If an alarm is set, it was for the one that is first already.
	if q.held && (q.alarm == nil || q.waiting.first == w) {
		q.watch(q.waiting.first, q.head.holder.Deadline())
	}
	return Queued
}

// handOver makes the next waiter the holder of what w has released, and returns it: its turn
// is to be sent. It returns nil if that is not safe. It locks the mutex itself.
func (q *queue[V]) handOver(w *Waiter[V]) *Waiter[V] {
	defer q.lock().Unlock()
	if q.head != w || !q.held {
		return nil
	}
	p, next := q.stripe, q.waiting.first
	var deadline time.Time
	q.held = next != nil && !p.closed
	if q.held {
		deadline, q.held = next.holder.TakeOver(w.holder)
	}
	if !q.held {
		return nil
	}
	q.waiting.remove(next)
	q.head = next
	if first := q.waiting.first; first != nil {
		q.watch(first, deadline)
	}
	// w has read its turn: it could not have held otherwise.
	if w.turn != nil && len(p.spare) < enoughChannels {
		p.spare, w.turn = append(p.spare, w.turn), nil
	}
	return next
}

// promoteNext makes the next waiter the head. A queue without one is idle.
func (q *queue[V]) promoteNext() {
	q.held = false
	q.head = q.waiting.first
	if q.head != nil {
		q.waiting.remove(q.head)
		q.head.turn <- Acquire
		return
	}
	q.stopWatching()
	q.stripe.busy--
}

func expired[V any](w *Waiter[V]) bool { return time.Until(w.holder.Deadline()) <= 0 }

// watch sets an alarm for a head with that deadline, for which w waits, or has tried: at its
// deadline, so that one which has forgotten what it holds does not keep the others, and when it
// has held for a retry interval of w, to have that inspected.
//
// The deadline moves with every extension and hand-over, mostly to later, and the head may
// change at any time. So an alarm that is set stays as it is, unless it would be late, and
// checks when it goes off: hand-overs that follow each other quickly set none.
func (q *queue[V]) watch(w *Waiter[V], deadline time.Time) {
	interval := w.holder.RetryInterval()
	if q.alarm != nil && !deadline.Before(q.alarmAt) && interval >= q.interval {
		return
	}
	now := time.Now()
	at := now.Add(interval)
	if q.watched == q.head && q.inspectAt.After(now) && q.inspectAt.Before(at) {
		at = q.inspectAt // as the alarm before it
	}
	q.watched, q.interval, q.inspectAt = q.head, interval, at
	if deadline.Before(at) {
		at = deadline
	}
	if q.alarm != nil {
		q.alarm.Stop()
	}
	q.alarmAt = at
	q.alarm = time.AfterFunc(at.Sub(now), q.checkHead)
}

// stopWatching forgets the alarm.
func (q *queue[V]) stopWatching() {
	if q.alarm != nil {
		q.alarm.Stop()
	}
	q.alarm, q.watched, q.tried = nil, nil, false
}

// checkHead runs in the alarm's goroutine. It passes by a head whose deadline is over, and
// has what the head holds inspected if it has held all the time since the alarm was set.
func (q *queue[V]) checkHead() {
	defer q.lock().Unlock()
	first, tried := q.waiting.first, q.tried
	q.alarm, q.tried = nil, false
	switch {
	case !q.held || q.stripe.closed || first == nil && !tried:
		q.watched = nil
		return
	case expired(q.head):
		q.watched = nil
		if first != nil {
			q.promoteNext()
		}
		return
	case q.head == q.watched && !time.Now().Before(q.inspectAt):
		q.head.holder.Inspect()
	}
	if first != nil {
		q.watch(first, q.head.holder.Deadline())
	}
}

// list is a doubly linked list of waiters, those that came first at the front.
type list[V any] struct{ first, last *Waiter[V] }

func (l *list[V]) push(w *Waiter[V]) {
	w.inList, w.prev = true, l.last
	if l.last == nil {
		l.first = w
	} else {
		l.last.next = w
	}
	l.last = w
}

func (l *list[V]) remove(w *Waiter[V]) {
	if w.prev == nil {
		l.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.inList, w.prev, w.next = false, nil, nil
}
