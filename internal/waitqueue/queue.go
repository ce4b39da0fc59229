package waitqueue

import "time"

// The methods in this file are called with the set's mutex held.

// promoteNext makes the next waiter the head. A queue without one is idle.
func (q *queue[V]) promoteNext(t Turn) {
	q.held, q.heldElsewhere = false, false
	q.head = q.waiting.first
	if q.head != nil {
		q.waiting.remove(q.head)
		q.head.turn <- t
		return
	}
	q.fairness = fairness{} // the notifications may be counted anew before the name is wanted again
	if q.alarm != nil {
		q.alarm.Stop()
		q.alarm = nil
	}
}

// refuseImpatient tells those who would not wait that there is nothing to be had.
func (q *queue[V]) refuseImpatient() {
	for w := q.waiting.first; w != nil; {
		next := w.next
		if w.impatient {
			q.waiting.remove(w)
			w.turn <- Refused
		}
		w = next
	}
}

func expired[V any](w *Waiter[V]) bool { return !time.Now().Before(w.holder.Deadline()) }

// watch sets an alarm for the deadline of a head for which others wait, so that one which
// has forgotten what it holds does not keep them. The deadline moves with every extension
// and hand-over, mostly to later: the alarm is set anew only for an earlier one, and
// checks when it goes off.
func (s *Set[V]) watch(q *queue[V]) {
	deadline := q.head.holder.Deadline()
	if q.alarm != nil {
		if !deadline.Before(q.alarmAt) {
			return
		}
		q.alarm.Stop()
	}
	q.alarmAt = deadline
	q.alarm = time.AfterFunc(time.Until(deadline), func() { s.checkDeadline(q) })
}

// checkDeadline runs in the alarm's goroutine.
func (s *Set[V]) checkDeadline(q *queue[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q.alarm = nil
	switch {
	case !q.held || q.waiting.first == nil:
	case expired(q.head):
		q.promoteNext(Acquire)
	default:
		s.watch(q)
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
