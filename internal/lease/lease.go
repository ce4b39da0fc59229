package lease

import (
	"context"
	"sync"
	"time"
)

// Lease is the time for which its holder may rely on something, by the local clock. It
// begins with Begin, moves with Extend, and ends for good: by End, or when its deadline
// passes. It is safe for concurrent use. The zero value is a lease that has not begun:
// its deadline has passed.
//
// It costs a timer from the first call of Context on, and no goroutine.
type Lease struct {
	mu        sync.Mutex // guards what follows
	deadline  time.Time  // when it is lost, unless it is extended
	covered   time.Time  // until when the server keeps it, safely: not before the deadline
	unsettled int32      // extensions that were sent and may yet be carried out
	ended     bool       // never false again
	rare      *rare      // nil until it is needed
}

// rare is what many leases do not have. They are small without it: on a lock that many want,
// each hand-over makes one.
type rare struct {
	limit  time.Time     // the deadline is not moved beyond; zero for no limit
	asked  time.Duration // the longest TTL that an unsettled extension asked for; 0 for none
	cause  error         // with which ctx ends, or would, once ended; nil for context.Canceled
	ctx    context.Context
	cancel context.CancelCauseFunc
	alarm  *time.Timer // ends ctx at the deadline
}

// rarely returns what is rare, to be changed.
func (l *Lease) rarely() *rare {
	if l.rare == nil {
		l.rare = new(rare)
	}
	return l.rare
}

// Begin sets the first deadline, and until when the server keeps what is held. limit is
// the longest time for which the lease may last from now, 0 for any time. It returns the
// deadline, which is the limit if that is sooner.
func (l *Lease) Begin(now, deadline, covered time.Time, limit time.Duration) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if limit > 0 {
		l.rarely().limit = now.Add(limit)
	}
	l.deadline, l.covered = l.limited(deadline), covered
	return l.deadline
}

// limited is t, or the limit if that is sooner.
func (l *Lease) limited(t time.Time) time.Time {
	if l.rare != nil && !l.rare.limit.IsZero() && l.rare.limit.Before(t) {
		return l.rare.limit
	}
	return t
}

// Ask notes that an extension by ttl is about to be sent. It reports false if the lease is
// not held any more: then nothing must be sent. Until Settle, the extension counts as one
// that may yet be carried out, at any time.
func (l *Lease) Ask(ttl time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.holds() {
		return false
	}
	l.unsettled++
	l.rarely().asked = max(l.rare.asked, ttl)
	return true
}

// Settle notes that an extension for which Ask was called cannot do more than what the
// lease knows: it was carried out once, and Extend has counted it; or it never will be.
func (l *Lease) Settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unsettled--; l.unsettled == 0 {
		l.rarely().asked = 0
	}
}

// Extend moves the deadline and the cover to later times. It never makes them earlier.
// It reports whether the lease is still held: if not, nothing has changed.
func (l *Lease) Extend(deadline, covered time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.holds() {
		return false
	}
	if covered.After(l.covered) {
		l.covered = covered
	}
	if deadline = l.limited(deadline); deadline.After(l.deadline) {
		l.deadline = deadline
		if l.rare != nil && l.rare.alarm != nil {
			l.rare.alarm.Reset(time.Until(deadline))
		}
	}
	return true
}

// End ends the lease, and its context with cause (nil for context.Canceled; ErrLost if
// it had begun and the deadline had passed). It reports whether this call was the one that ended
// it. A lease that its deadline ended, and of which the server has said nothing, still has
// something to release: that too is reported as true, once.
func (l *Lease) End(cause error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	if l.expired() && !l.deadline.IsZero() {
		cause = ErrLost
	}
	l.ended = true
	if cause != nil {
		l.rarely().cause = cause
	}
	if l.rare != nil && l.rare.alarm != nil {
		l.rare.alarm.Stop()
		l.rare.cancel(cause)
	}
	return true
}

// Valid reports whether the lease is held now.
func (l *Lease) Valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holds()
}

func (l *Lease) holds() bool { return !l.ended && !l.expired() }

// expired reports whether the deadline has passed. time.Until reads one clock, time.Now two.
func (l *Lease) expired() bool { return time.Until(l.deadline) <= 0 }

// Cause returns the cause that End was given, or ErrLost if the deadline had passed by
// then. It is nil before End.
func (l *Lease) Cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rare == nil {
		return nil
	}
	return l.rare.cause
}

// Lose notes that a lease which has ended was lost before. The context has ended already,
// and keeps its cause.
func (l *Lease) Lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		l.rarely().cause = ErrLost
	}
}

// Ended reports whether End has been called.
func (l *Lease) Ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// Renewable reports whether an extension can do anything for the lease: it is held, and
// not at its limit.
func (l *Lease) Renewable() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holds() && l.limited(l.deadline.Add(1)).After(l.deadline)
}

// Deadline returns when the lease is lost unless it is extended.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}

// Bounds returns the deadline, until when the server safely keeps what is held, and the
// longest TTL that it may be given yet by an extension which is not settled, 0 for none.
func (l *Lease) Bounds() (deadline, covered time.Time, asked time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rare != nil {
		asked = l.rare.asked
	}
	return l.deadline, l.covered, asked
}

// Over returns when the lease is over for good: its holder has nothing left to protect then,
// and a release of it nothing to wait for. That is when the server may have dropped what is
// held, or at the limit, if that is sooner.
func (l *Lease) Over() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limited(l.covered)
}

// Context returns the lease's context, which ends with it: with the cause ErrLost at the
// deadline, or with the cause that End was given.
func (l *Lease) Context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.rarely()
	if r.ctx != nil {
		return r.ctx
	}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	left := time.Until(l.deadline)
	switch {
	case l.ended:
		r.cancel(r.cause)
	case left <= 0:
		r.cancel(ErrLost)
	default:
		r.alarm = time.AfterFunc(left, l.expire)
	}
	return r.ctx
}

// expire is called at what was the deadline when the alarm was last set.
func (l *Lease) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended && l.expired() {
		l.rare.cancel(ErrLost)
	}
}
