package waitqueue

import (
	"time"

	"github.com/sluice-go/sluice/internal/shrink"
)

// enough is how many idle names a set keeps at least.
const enough = 64

// The methods in this file are called with the set's mutex held.

// promoteNext makes the next waiter the head. A queue without one is idle.
func (s *Set[V]) promoteNext(q *queue[V], t Turn) {
	q.held, q.observed = false, Nothing
	q.head = q.waiting.first
	if q.head != nil {
		q.waiting.remove(q.head)
		q.head.turn <- t
		return
	}
	q.fairness = fairness{} // the notifications may be counted anew before the name is wanted again
	q.stopWatching()
	s.busy--
}

// makeRoom drops idle queues while there are more than enough: until then, an idle queue
// spares the next waiter for that name its making. It also drops those whose head has lost
// what it held and for which nothing waits, so that forgetting to give back leaks nothing.
//
// It looks at a few queues only, in turn. Every name that comes, and every queue that
// becomes idle, makes it look at more of them than that adds.
func (s *Set[V]) makeRoom() {
	for range 4 {
		q := s.oldest
		if q == nil || len(s.queues) <= enough {
			return
		}
		forgotten := q.held && q.waiting.first == nil && expired(q.head)
		idle := q.head == nil && len(s.queues)-s.busy > 2*s.busy+enough
		if !forgotten && !idle {
			s.oldest = q.next
			continue
		}
		if forgotten { // it is nothing to its queue any more, should it give back at last
			q.head, q.held = nil, false
			q.stopWatching()
			s.busy--
		}
		s.drop(q)
	}
}

// add puts a new queue into the ring of queues: it is the last that makeRoom looks at.
func (s *Set[V]) add(q *queue[V]) {
	s.queues[q.name] = q
	if s.oldest == nil {
		q.next, q.prev, s.oldest = q, q, q
		return
	}
	q.next, q.prev = s.oldest, s.oldest.prev
	q.prev.next, q.next.prev = q, q
}

// drop forgets a queue, and looks at the one behind it next.
func (s *Set[V]) drop(q *queue[V]) {
	delete(s.queues, q.name)
	s.queues = shrink.Map(s.queues, &s.peak)
	q.prev.next, q.next.prev = q.next, q.prev
	if s.oldest == q {
		s.oldest = q.next
	}
	if q.next == q {
		s.oldest = nil
	}
	q.next, q.prev = nil, nil
}

// refuseImpatient gives those who would not wait a turn that says why there is nothing to
// be had.
func (q *queue[V]) refuseImpatient(t Turn) {
	for w := q.waiting.first; w != nil; {
		next := w.next
		if w.impatient {
			q.waiting.remove(w)
			w.turn <- t
		}
		w = next
	}
}

func expired[V any](w *Waiter[V]) bool { return !time.Now().Before(w.holder.Deadline()) }

// watch sets an alarm for a head for which w waits, or was refused: at its deadline, so that
// one which has forgotten what it holds does not keep the others, and when it has held for a
// retry interval of w, to have that inspected.
//
// The deadline moves with every extension and hand-over, mostly to later, and the head may
// change at any time. So an alarm that is set stays as it is, unless it would be late, and
// checks when it goes off: hand-overs that follow each other quickly set none.
func (s *Set[V]) watch(q *queue[V], w *Waiter[V]) {
	deadline, interval := q.head.holder.Deadline(), w.holder.RetryInterval()
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
	q.alarm = time.AfterFunc(at.Sub(now), func() { s.checkHead(q) })
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
func (s *Set[V]) checkHead(q *queue[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, tried := q.waiting.first, q.tried
	q.alarm, q.tried = nil, false
	switch {
	case !q.held || s.closed || first == nil && !tried:
		q.watched = nil
		return
	case expired(q.head):
		q.watched = nil
		if first != nil {
			s.promoteNext(q, Acquire)
		}
		return
	case q.head == q.watched && !time.Now().Before(q.inspectAt):
		q.head.holder.Inspect()
	}
	if first != nil {
		s.watch(q, first)
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
