// Package waitqueue keeps the callers of one process that wait for the same name: first
// come, first served. It knows no Redis.
//
// Each name has a queue. The waiter at its head acts for all: it acquires what they wait
// for, elsewhere, and then holds it. The others wait for their turn and do nothing. When
// the head is done, the next waiter either takes over what the head held (a hand-over) or
// becomes the head and acquires it anew.
//
// A holder may lose what it holds without knowing. If one has held for a whole retry
// interval of the first that waits behind it, it is asked to inspect that, once in each
// interval; and so it is after an impatient waiter was refused.
//
// The life of a waiter w:
//
//	Join      → Acquire, Refused, Unserved, Closed, or Queued
//	Queued    → a turn comes through w.Turn(): Granted, Acquire, YieldThenAcquire, Refused,
//	            Unserved or Closed; or the caller gives up: Leave
//	Acquire…  → Hold (acquired), PromoteNext (failed), or LeaveUnanswered
//	Hold      → HandOver, or else, once it is given back, GivenBack; or PromoteNext (lost)
package waitqueue

import (
	"sync"
	"time"
)

// Holder is what a waiter acts for: it acquires, and then holds. Its methods are called
// with the set's mutex held, and must not call the set.
type Holder interface {
	// Deadline is until when it safely holds.
	Deadline() time.Time
	// TakeOver makes it the holder of what from gives up, if that is safe, and reports
	// whether it did.
	TakeOver(from Holder) bool
	// ForbidHandOver keeps what it holds, or is about to, from being handed over.
	ForbidHandOver()
	// RetryInterval is how long it waits at most for another one before it has inspected
	// whether that still holds.
	RetryInterval() time.Duration
	// Inspect has it find out, in the background, whether it still holds. If it does not,
	// its owner calls PromoteNext.
	Inspect()
}

// Turn is what a waiter learns.
type Turn int

// The turns.
const (
	Queued           Turn = iota // wait for the turn
	Granted                      // it is the holder: a hand-over
	Acquire                      // it is the head, and is to acquire
	YieldThenAcquire             // likewise; other processes were notified before, and are to go first
	Refused                      // another one holds, or is before it in line, and it would not wait
	Unserved                     // the head's last attempt got no answer, and it would not wait
	Closed                       // the set is closed
)

// Observation is what the head has learnt last.
type Observation int

// The observations.
const (
	Nothing       Observation = iota // it asks
	HeldElsewhere                    // another process holds, or the head is giving back
	NoAnswer                         // no server has carried out its last attempt, as far as is known
)

// Set is the queues of all names. It is safe for concurrent use. V is what the owner
// keeps for each name; the set keeps it for as long as the name's queue.
type Set[V any] struct {
	value  func(prefix, name string) (V, error)
	mu     sync.Mutex           // guards what follows, and the queues and waiters of this set
	queues map[string]*queue[V] // by name
	peak   int                  // the most queues so far, see shrink.Map
	oldest *queue[V]            // the ring of all queues, at the one that makeRoom looks at next
	busy   int                  // how many queues have a head
	spare  []chan Turn          // of waiters that have handed over: empty, for others to wait on
	closed bool
}

// queue is the waiters of one name. It is idle while it has no head.
type queue[V any] struct {
	value      V
	name       string
	prev, next *queue[V] // in the ring of all queues

	head     *Waiter[V]
	held     bool // the head holds, and has not begun to give back
	observed Observation
	waiting  list[V]
	fairness fairness

	alarm     *time.Timer // checks whether the head has lost what it holds; nil if none is set
	alarmAt   time.Time
	watched   *Waiter[V]    // the head when the alarm was set
	inspectAt time.Time     // when it will have held for interval
	interval  time.Duration // of the waiter for which the alarm was set
	tried     bool          // since then an impatient waiter was refused
}

// Waiter is a caller's place in a queue. The zero value is ready for Join. It belongs to
// the set from then on.
type Waiter[V any] struct {
	holder     Holder
	queue      *queue[V]
	impatient  bool // it leaves as soon as another one is known to hold
	inList     bool
	prev, next *Waiter[V]
	turn       chan Turn // cap 1: what a queued waiter learns, once
}

// New returns a set without names. value makes what is kept for a name that is new; it is
// called with the set's mutex held.
func New[V any](value func(prefix, name string) (V, error)) *Set[V] {
	return &Set[V]{queues: map[string]*queue[V]{}, value: value}
}

// Turn returns the channel on which a queued waiter learns its turn, once.
func (w *Waiter[V]) Turn() <-chan Turn { return w.turn }

// Join adds w, which acts for holder, to the queue of a name. It sets *into to what is kept
// for the name, before another goroutine can make w
// the holder. An impatient waiter waits for what the head's present attempt says, at the
// most: it is Refused as soon as another one is known to hold, and Unserved as soon as an
// attempt of the head has had no answer. The turn is Acquire, Refused, Unserved, Closed or
// Queued.
// The error is that of New's value.
//
// The name is prefix and name together. They are two arguments so that a name which is
// known costs no allocation.
func (s *Set[V]) Join(prefix, name string, w *Waiter[V], holder Holder, impatient bool,
	into *V,
) (Turn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return Closed, nil
	}
	q, err := s.queueOf(prefix, name)
	if err != nil {
		return Refused, err
	}
	*into = q.value
	*w = Waiter[V]{holder: holder, queue: q, impatient: impatient}
	// An alarm that is set looks after the head itself, and spares most callers the clock.
	if q.held && (impatient || q.alarm == nil) && expired(q.head) {
		s.promoteNext(q, Acquire) // without the head, which has forgotten what it held
	}
	switch {
	case q.head == nil:
		q.head = w
		s.busy++
		return Acquire, nil
	case impatient && q.held:
		q.tried = true
		s.watch(q, w)
		return Refused, nil
	case impatient && q.observed == HeldElsewhere:
		return Refused, nil
	case impatient && q.observed == NoAnswer:
		return Unserved, nil
	}
	w.turn = s.channel()
	q.waiting.push(w)
	// If an alarm is set, it was for the one that is first already.
	if q.held && (q.alarm == nil || q.waiting.first == w) {
		s.watch(q, q.waiting.first)
	}
	return Queued, nil
}

func (s *Set[V]) queueOf(prefix, name string) (*queue[V], error) {
	if q := s.queues[prefix+name]; q != nil {
		return q, nil
	}
	v, err := s.value(prefix, name)
	if err != nil {
		return nil, err
	}
	q := &queue[V]{value: v, name: prefix + name}
	s.makeRoom()
	s.add(q)
	return q, nil
}

// Leave takes a queued waiter out of its queue. It reports false if its turn has come
// already: the caller then reads it from Turn.
func (s *Set[V]) Leave(w *Waiter[V]) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !w.inList {
		return false
	}
	q := w.queue
	wasFirst := q.waiting.first == w
	q.waiting.remove(w)
	if first := q.waiting.first; wasFirst && first != nil && q.held {
		s.watch(q, first) // its interval may be shorter
	}
	return true
}

// Observed notes what the head has learnt.
func (s *Set[V]) Observed(w *Waiter[V], what Observation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := w.queue
	if q.head != w {
		return
	}
	q.observed = what
	switch what {
	case HeldElsewhere:
		q.refuseImpatient(Refused)
	case NoAnswer:
		q.refuseImpatient(Unserved)
	case Nothing:
	}
}

// Hold makes the head the holder. It reports false if the set is closed.
func (s *Set[V]) Hold(w *Waiter[V]) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	q := w.queue
	q.held, q.observed = true, Nothing
	q.refuseImpatient(Refused)
	if first := q.waiting.first; first != nil {
		s.watch(q, first)
	}
	return true
}

// HandOver hands what the head has just given up over to the next waiter, and reports
// whether it did: it does where that is safe, and the set is not closed. If it did not,
// the head stays until GivenBack, so that nothing overtakes the way back: it is no holder
// any more, but what it held is not free either.
func (s *Set[V]) HandOver(w *Waiter[V]) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := w.queue
	if q.head != w || !q.held {
		return false
	}
	next := q.waiting.first
	if next == nil || s.closed || !next.holder.TakeOver(w.holder) {
		q.held, q.observed = false, HeldElsewhere
		return false
	}
	q.waiting.remove(next)
	q.head = next
	if first := q.waiting.first; first != nil {
		s.watch(q, first)
	}
	next.turn <- Granted
	// w has read its turn: it could not have held otherwise.
	if w.turn != nil && len(s.spare) < enough {
		s.spare, w.turn = append(s.spare, w.turn), nil
	}
	return true
}

// channel returns one for a waiter's turn.
func (s *Set[V]) channel() chan Turn {
	last := len(s.spare) - 1
	if last < 0 {
		return make(chan Turn, 1)
	}
	c := s.spare[last]
	s.spare = s.spare[:last]
	return c
}

// PromoteNext ends the turn of the head, which holds nothing any more: the next waiter is
// to acquire. It does nothing if w is not the head, or was never in a queue.
func (s *Set[V]) PromoteNext(w *Waiter[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.queue != nil && w.queue.head == w {
		s.promoteNext(w.queue, Acquire)
		s.makeRoom()
	}
}

// LeaveUnanswered is PromoteNext for a head that leaves while an attempt of its is under
// way. The next waiter acquires, also if it is impatient. Other impatient ones behind it are
// Unserved: they have waited for one attempt, and there may be as many more as there are
// waiters before them.
func (s *Set[V]) LeaveUnanswered(w *Waiter[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := w.queue; q != nil && q.head == w {
		s.promoteNext(q, Acquire)
		q.refuseImpatient(Unserved)
		s.makeRoom()
	}
}

// GivenBack is PromoteNext once what the head held has been given back, and that many
// other processes were notified: they are to go first. received is how many notifications
// have come until now, this one included; see [Set.HeadStart].
func (s *Set[V]) GivenBack(w *Waiter[V], notified, received int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.queue == nil || w.queue.head != w {
		return
	}
	w.queue.fairness = fairness{notified: notified, received: received}
	if notified > 0 {
		s.promoteNext(w.queue, YieldThenAcquire)
	} else {
		s.promoteNext(w.queue, Acquire)
	}
	s.makeRoom()
}

// HeadStart returns how long the head lets other processes go first, when the received-th
// notification has come.
func (s *Set[V]) HeadStart(w *Waiter[V], received int) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return w.queue.fairness.headStart(received)
}

// ForbidHandOver keeps what the head of a name holds, or is about to, from being handed
// over.
func (s *Set[V]) ForbidHandOver(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[name]; q != nil && q.head != nil {
		q.head.holder.ForbidHandOver()
	}
}

// Holder returns the one that holds a name, or nil.
func (s *Set[V]) Holder(name string) Holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[name]; q != nil && q.held {
		return q.head.holder
	}
	return nil
}

// Close makes Hold and HandOver refuse, and gives the turn Closed to all that are queued, and
// to those that join later. What is held then stays so: see Holders.
func (s *Set[V]) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, q := range s.queues {
		for w := q.waiting.first; w != nil; w = q.waiting.first {
			q.waiting.remove(w)
			w.turn <- Closed
		}
	}
}

// Holders returns those that hold.
func (s *Set[V]) Holders() (holders []Holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.queues {
		if q.held {
			holders = append(holders, q.head.holder)
		}
	}
	return holders
}

// Len returns how many names the set keeps, how many of them have a head, and how many
// waiters are queued.
func (s *Set[V]) Len() (names, busy, queued int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.queues {
		if q.head != nil {
			busy++
		}
		for w := q.waiting.first; w != nil; w = w.next {
			queued++
		}
	}
	return len(s.queues), busy, queued
}
