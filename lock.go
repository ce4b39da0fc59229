package sluice

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-go/sluice/internal/locks"
)

// Lock is the handle of a lock that is, or was, held. It is safe for concurrent use.
type Lock struct {
	held locks.Hold // no pointer: each hand-over would allocate one more
}

// Unlock releases the lock and ends its Context. It waits for an answer until ctx ends, or the
// lock's own end has come, or the limit of WithMaxHold: there is nothing to wait for then.
//
// It works with a context that has ended, and for a lock that is over: it then waits 15ms for an
// answer. The lock's own Context, which it ends, counts as one that goes on. In every case
// the handle is used up.
//
// It returns nil if the lock was the caller's to its end: it is free then, or the next waiting
// caller's. ErrNotHeld says that it was released before, lost or forced open, and ErrClosed that
// UnlockAll or Close has released it. After ErrUnknown and ErrUnavailable the release goes on in
// the background, and the caller has nothing to do. docs/errors.md has the table, with what nil and
// ErrNotHeld say of a lock whose time was over meanwhile.
func (k *Lock) Unlock(ctx context.Context) error { return k.wrap("unlock", k.hold().Unlock(ctx)) }

// Extend gives the lock a TTL of at least ttl from now. It never makes a TTL shorter, so that a
// late copy of an earlier call does no harm. ttl is 1ms to 100 years, else ErrInvalid.
//
// The error is ErrNotHeld if the lock was released, lost or forced open, and ErrClosed if UnlockAll
// or Close has released it; its Context has ended then. If it ended while Extend had no answer,
// that error is joined with the reason. After any other error, ErrUnderReplicated among them, the
// lock is held as before, and Extend may be called again.
func (k *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	if err := checkDuration("ttl", ttl); err != nil {
		return k.wrap("extend", err)
	}
	return k.wrap("extend", k.hold().Extend(ctx, ttl))
}

// TTL asks the server how long the key will live if it is not extended. The error is
// ErrNotHeld if the lock is not the caller's any more, and ErrClosed if UnlockAll or Close
// has released it.
func (k *Lock) TTL(ctx context.Context) (time.Duration, error) {
	left, err := k.hold().TimeLeft(ctx)
	return left, k.wrap("ttl", err)
}

// Detach ends the handle, and leaves the lock held: for the process that is told the token, which
// it returns, and which calls Adopt. The Context ends with context.Canceled.
//
// This process sends nothing for the lock after that, and no request of it that is carried out
// later can take or release the lock.
//
// The lock's TTL goes on: it is free at what was the Deadline, soon after, unless it is adopted
// before. Call Extend before Detach to give the other process more time. If WithAutoRenew extends
// the lock at this moment, Detach waits for that until ctx ends, and 15ms. It sends nothing itself.
// An extension that has no reply by then may still be carried out while the token holds the lock:
// the TTL then becomes no shorter, but lasts from that moment.
//
// The error is ErrNotHeld or ErrClosed, as that of Unlock; the handle is used up in any case. A
// lock of Do or of a LockSet may be detached too: Do then returns ErrLost, and the set's Unlock
// ErrNotHeld.
func (k *Lock) Detach(ctx context.Context) (token string, err error) {
	token, err = k.hold().Detach(ctx)
	return token, k.wrap("detach", err)
}

// Valid reports whether the lock is held, by the local clock and without I/O. It is false
// from the deadline on. Call it after long pauses, before a step that cannot be undone.
func (k *Lock) Valid() bool { return k.hold().Valid() }

// Deadline returns until when the lock is safely held unless it is extended.
//
// It is the time at which the request was sent, plus the TTL, less 1% and 2ms; for a TTL too short
// for that, plus half the TTL. For a lock that was handed over within the process, that is the time
// of the hand-over. WithMaxHold may end the lock sooner.
func (k *Lock) Deadline() time.Time { return k.hold().Deadline() }

// Context returns a context that ends when the lock does: with the cause ErrLost at its deadline,
// or when the server says that it is gone; with ErrClosed in UnlockAll and Close; with
// context.Canceled in Unlock.
//
// It does not descend from the context given to Lock, which bounds the waiting and nothing else. It
// costs a timer, from the first call on, and no goroutine.
func (k *Lock) Context() context.Context { return k.hold().Context() }

// Name returns the name that the lock was taken by.
func (k *Lock) Name() string { return k.hold().Name() }

// Fence returns a number that is higher than that of every earlier holder of the name with
// WithFencing, in any process: over a lock that expired, was handed over or forced open, a server
// that restarted without its data, a FLUSHALL.
//
// Write it beside what the lock guards, before you read that, and have reads and writes refused
// where a higher one stands. It is 0 without WithFencing.
//
// It is the server's time in microseconds, or one more than the last fence where that is higher. So
// it can go back only where the server (or, in a failover, another one) has lost the last fence
// *and* its clock is behind that: because it was set back, or by up to the hand-over window (see
// Locker.Lock) for each Detach, and each time that the lock had just been forced open. Within a
// process whose lock another process has forced open, or whose key the server has lost (by FLUSHALL
// or a restart without its data, say), it may be handed over until that window ends, with fences
// that are lower than the new holder's.
//
// While two primaries serve side by side, as some failovers have it, a fence is of the
// time at which its primary saw the acquisition. So it can be lower than one that the
// other primary has given while the reply was on its way.
func (k *Lock) Fence() int64 { return k.hold().Fence() }

// Token returns what the key holds while the lock is held. A client that knows it can
// release the lock, so it must not be logged. A lock that is handed over keeps its token,
// so that successive handles may have the same.
func (k *Lock) Token() string { return k.hold().Token() }

// Format prints the lock's name, whatever the verb: its fields hold the token.
func (k *Lock) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "sluice.Lock(%q)", k.Name()) }

// isMade is false for a nil Lock, as LockFromContext may return it, and a zero value.
func (k *Lock) isMade() bool { return k != nil && k.held.IsMade() }

// hold returns the engine's half of the lock.
func (k *Lock) hold() *locks.Hold {
	if k.isMade() {
		return &k.held
	}
	return locks.NotHeld()
}

// wrap says of an error which operation it is of, on this lock.
func (k *Lock) wrap(op string, err error) error {
	if k.isMade() {
		return wrap(op, k.held.Name(), err)
	}
	return invalid(op, "Lock not made by a Locker")
}
