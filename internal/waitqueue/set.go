// Package waitqueue keeps the callers of one process that wait for the same name: first
// come, first served. It knows no Redis.
//
// Each name has a queue. The waiter at its head acts for all: it acquires what they wait
// for, elsewhere, and then holds it. The others wait for their turn and do nothing. When
// the head is done, the next waiter either takes over what the head held (a hand-over) or
// becomes the head and acquires it anew.
//
// A waiter that only tries is never queued: it is the head, or another waiter is before it,
// and it leaves at once.
//
// A holder may lose what it holds without knowing. If one has held for a whole retry
// interval of the first that waits behind it, it is asked to inspect that, once in each
// interval; and so it is after another waiter has tried.
//
// The life of a waiter w:
//
//	Join      → Acquire, Queued or Closed; if it only tries, Acquire, Busy or Closed
//	Queued    → a turn comes through w.Turn(): Granted, Acquire or Closed;
//	            or the caller gives up: Leave
//	Acquire…  → Hold (acquired), or GiveUp
//	Hold      → HandOver, or else, once it is given back or lost, PromoteNext
package waitqueue

import (
	"hash/maphash"
	"time"
)

// Holder is what a waiter acts for: it acquires, and then holds. Its methods are called
// with a mutex of the set held, and must not call the set.
type Holder interface {
	// Deadline is until when it safely holds.
	Deadline() time.Time
	// TakeOver makes it the holder of what from releases, if that is safe, and reports
	// whether it did. It returns its deadline.
	TakeOver(from Holder) (deadline time.Time, ok bool)
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
	Queued  Turn = iota // wait for the turn
	Granted             // it is the holder: a hand-over
	Acquire             // it is the head, and is to acquire
	Busy                // another waiter is before it, and it only tries: it is not in the queue
	Closed              // the set is closed
)

// Set is the queues of all names. It is safe for concurrent use. V is what the owner
// keeps for each name; the set keeps it for as long as the name's queue.
type Set[V any] struct {
	value   func(prefix, name string) (V, error)
	seed    maphash.Seed
	stripes [stripes]stripe[V] // a name's queue is in the stripe of its hash
}

// stripes is how many parts a set has, each with a mutex of its own, so that hot names
// seldom wait for each other.
const stripes = 16

// queue is the waiters of one name. It is idle while it has no head.
type queue[V any] struct {
	name   string
	value  V
	stripe *stripe[V] // whose mutex guards what follows
	place  int        // among the stripe's queues

	head    *Waiter[V]
	held    bool // the head holds, and has not begun to give back
	waiting list[V]

	alarm     *time.Timer // checks whether the head has lost what it holds; nil if none is set
	alarmAt   time.Time
	watched   *Waiter[V]    // the head when the alarm was set
	inspectAt time.Time     // when it will have held for interval
	interval  time.Duration // of the waiter for which the alarm was set
	tried     bool          // since then a waiter has tried, and was told Busy
}

// Waiter is a caller's place in a queue. The zero value is ready for Join. It belongs to
// the set from then on.
type Waiter[V any] struct {
	holder     Holder
	queue      *queue[V]
	inList     bool
	prev, next *Waiter[V]
	turn       chan Turn // cap 1: what a queued waiter learns, once
}

// New returns a set without names. value makes what is kept for a name that is new; it is
// called with a mutex of the set held.
func New[V any](value func(prefix, name string) (V, error)) *Set[V] {
	s := &Set[V]{value: value, seed: maphash.MakeSeed()}
	for i := range s.stripes {
		s.stripes[i].queues = map[string]*queue[V]{}
	}
	return s
}

// Turn returns the channel on which a queued waiter learns its turn, once.
func (w *Waiter[V]) Turn() <-chan Turn { return w.turn }

// Join adds w, which acts for holder, to the queue of a name. It sets *into to what is kept for the
// name, before another goroutine can make w the holder. The turn is Acquire, Queued or Closed. With
// try, w is not added behind another waiter: then the turn is Busy. The error is that of New's
// value.
//
// The name is prefix and name together. They are two arguments so that a name which is
// known costs no allocation.
func (s *Set[V]) Join(prefix, name string, w *Waiter[V], holder Holder, try bool, into *V) (Turn, error) {
	var buffer [128]byte // enough for most, without an allocation
	key := append(append(buffer[:0], prefix...), name...)
	p := s.stripeOf(key)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return Closed, nil
	}
	q := p.queues[string(key)]
	if q == nil {
		v, err := s.value(prefix, name)
		if err != nil {
			return 0, err
		}
		q = p.add(string(key), v)
	}
	*into = q.value
	*w = Waiter[V]{holder: holder, queue: q}
	return q.join(w, try), nil
}

// Leave takes a queued waiter out of its queue. It reports false if its turn has come
// already: the caller then reads it from Turn.
func (s *Set[V]) Leave(w *Waiter[V]) bool {
	q := w.queue
	defer q.lock().Unlock()
	if !w.inList {
		return false
	}
	wasFirst := q.waiting.first == w
	q.waiting.remove(w)
	if first := q.waiting.first; wasFirst && first != nil && q.held {
		q.watch(first, q.head.holder.Deadline()) // its interval may be shorter
	}
	return true
}

// Hold makes the head the holder. It reports false if the set is closed.
func (s *Set[V]) Hold(w *Waiter[V]) bool {
	q := w.queue
	defer q.lock().Unlock()
	if q.stripe.closed {
		return false
	}
	q.held = true
	if first := q.waiting.first; first != nil {
		q.watch(first, w.holder.Deadline())
	}
	return true
}

// HandOver hands what the head has just released over to the next waiter, and reports
// whether it did: it does where that is safe, and the set is not closed. If it did not,
// the head stays until PromoteNext, so that nothing overtakes the way back: it is no holder
// any more, but what it held is not free either.
func (s *Set[V]) HandOver(w *Waiter[V]) bool {
	next := w.queue.handOver(w)
	if next == nil {
		return false
	}
	// Without the mutex, for which the one that is woken by this might have to wait. Meanwhile
	// next is the head already, and may be passed by; its turn it reads later.
	next.turn <- Granted
	return true
}

// PromoteNext ends the turn of the head, which holds nothing any more: the next waiter is
// to acquire. It does nothing if w is not the head, or was never in a queue.
func (s *Set[V]) PromoteNext(w *Waiter[V]) { s.GiveUp(w, func(bool) {}) }

// GiveUp is PromoteNext for a head that has not acquired. Before another waiter is the head, end is
// called with the mutex held, and told whether w is the last one.
func (s *Set[V]) GiveUp(w *Waiter[V], end func(last bool)) {
	q := w.queue
	if q == nil {
		return
	}
	defer q.lock().Unlock()
	end(q.head == w && q.waiting.first == nil)
	if q.head == w {
		q.promoteNext()
		q.stripe.makeRoom()
	}
}

// ForbidHandOver keeps what the head of a name holds, or is about to, from being handed
// over.
func (s *Set[V]) ForbidHandOver(name string) {
	p := s.stripeOf([]byte(name))
	p.mu.Lock()
	defer p.mu.Unlock()
	if q := p.queues[name]; q != nil && q.head != nil {
		q.head.holder.ForbidHandOver()
	}
}

// Holder returns the one that holds a name, or nil.
func (s *Set[V]) Holder(name string) Holder {
	p := s.stripeOf([]byte(name))
	p.mu.Lock()
	defer p.mu.Unlock()
	if q := p.queues[name]; q != nil && q.held {
		return q.head.holder
	}
	return nil
}

// Close makes Hold and HandOver refuse, and gives the turn Closed to all that are queued, and
// to those that join later. What is held then stays so: see Holders.
func (s *Set[V]) Close() {
	s.forEachStripe(func(p *stripe[V]) {
		p.closed = true
		for _, q := range p.queues {
			for w := q.waiting.first; w != nil; w = q.waiting.first {
				q.waiting.remove(w)
				w.turn <- Closed
			}
		}
	})
}

// Holders returns those that hold: each that held when Holders was called, unless it has given
// up meanwhile, and maybe some that came later.
func (s *Set[V]) Holders() (holders []Holder) {
	s.forEachStripe(func(p *stripe[V]) {
		for _, q := range p.queues {
			if q.held {
				holders = append(holders, q.head.holder)
			}
		}
	})
	return holders
}

// Len returns how many names the set keeps, how many of them have a head, and how many
// waiters are queued.
func (s *Set[V]) Len() (names, busy, queued int) {
	s.forEachStripe(func(p *stripe[V]) {
		names, busy = names+len(p.queues), busy+p.busy
		for _, q := range p.queues {
			for w := q.waiting.first; w != nil; w = w.next {
				queued++
			}
		}
	})
	return names, busy, queued
}

// forEachStripe calls f for one stripe after the other, with its mutex held.
func (s *Set[V]) forEachStripe(f func(p *stripe[V])) {
	for i := range s.stripes {
		p := &s.stripes[i]
		p.mu.Lock()
		f(p)
		p.mu.Unlock()
	}
}

func (s *Set[V]) stripeOf(key []byte) *stripe[V] {
	return &s.stripes[maphash.Bytes(s.seed, key)%stripes]
}
