package sluice

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/line"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/waitqueue"
)

// Lock is the handle of a lock that is, or was, held. It is safe for concurrent use.
type Lock struct {
	// The waiter is its place in its name's queue, and belongs to the Locker's queues; the
	// lease is the deadline and the Context, and guards itself; the rest is written before
	// the caller gets the handle and not changed afterwards, except noHandOver.

	locker  *Locker
	name    string
	options *lockOptions // often the Locker's own: not changed
	address *address

	waiter     waitqueue.Waiter[*address]
	lease      lease.Lease
	grant      *grant      // nil before it is acquired or handed over
	fence      int64       // the last one that was taken of the grant: this lock's, if it is fenced
	noHandOver atomic.Bool // it was forced open or is not ours any more: not to be handed over
}

// begin sets the first deadline of a lock that is taken now, and returns it. covered is until
// when its key lives, safely.
func (k *Lock) begin(now, deadline, covered time.Time) time.Time {
	return k.lease.Begin(now, deadline, covered, k.options.maxHold)
}

// Unlock releases the lock and ends its Context. It waits for an answer until ctx ends, or the lock's own end has
// come, or the limit of WithMaxHold: there is nothing to wait for then.
//
// It works with a context that has ended, and for a lock that is over: it then waits 15ms for an answer. In every
// case the handle is used up.
//
// It returns nil if the lock was still the caller's; it is then free, or the next waiting
// caller's. (If Context had ended before, the lock was lost all the same, though no other
// caller has had it.) It also returns nil if the lock was valid when Unlock was called and
// its time was over when the server had answered: what the lock guarded was protected
// to its end, unless it was forced open meanwhile. The error is ErrNotHeld if the lock was
// released before, lost, or forced open; ErrClosed if UnlockAll or Close has released it. It is ErrUnknown if there was no
// answer, and ErrUnavailable if no server could be reached: the release goes on in the
// background, and the caller has nothing to do. If the deadline had passed when Unlock was
// called, every error without an answer is ErrNotHeld too.
func (k *Lock) Unlock(ctx context.Context) error {
	if err := k.check("unlock"); err != nil {
		return err
	}
	if !k.lease.End(nil) {
		return wrap("unlock", k.name, k.whyEnded())
	}
	l := k.locker
	if k.options.renew {
		l.renewer.Remove(ctx, k.member(), redisexec.ReplyGrace)
	}
	if k.handOver() {
		k.tellEnded(lockHandedOver)
		return nil
	}
	request := k.releaseRequest()
	request.Detached, request.Small, request.Until = true, true, k.lease.Over()
	reply, err := l.executor.Run(ctx, request)
	return wrap("unlock", k.name, k.handleRelease(reply.Value, reply.Ambiguous, err))
}

// Extend gives the lock a TTL of at least ttl from now. It never makes a TTL shorter, so
// that a late copy of an earlier call does no harm.
//
// The error is ErrNotHeld if the lock was released, lost or forced open, and ErrClosed if
// UnlockAll or Close has released it; its Context has ended then. If it ended while Extend
// had no answer, that error is joined with the reason. After any other error, ErrUnderReplicated
// among them, the lock is held as before, and Extend may be called again.
func (k *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	if err := k.check("extend"); err != nil {
		return err
	}
	if err := checkDuration("TTL", ttl); err != nil {
		return fmt.Errorf("sluice: extend: %w", err)
	}
	return wrap("extend", k.name, k.extend(ctx, ttl))
}

func (k *Lock) extend(ctx context.Context, ttl time.Duration) error {
	if !k.lease.Ask(ttl) {
		return k.whyEnded()
	}
	request := k.extendRequest(ttl)
	request.Until, request.Small = k.lease.Deadline(), true
	reply, err := k.locker.executor.Run(ctx, request)
	if err != nil {
		unknown, valid := errors.Is(err, ErrUnknown), k.Valid()
		switch {
		case !unknown:
			k.lease.Settle()
		case !valid:
			k.handleLateExtension()
		}
		if !valid { // it has ended meanwhile, whatever becomes of the extension
			return fmt.Errorf("%w: %w", k.whyEnded(), err)
		}
		return err
	}
	if err := k.handleExtension(reply.Sent, ttl, reply.Value, reply.Shortfall); err != nil {
		return err
	}
	if !reply.Ambiguous { // else a copy may still be on its way
		k.lease.Settle()
	}
	return nil
}

// extendRequest gives the lock a TTL of at least ttl.
func (k *Lock) extendRequest(ttl time.Duration) redisexec.Request {
	return k.replicated(k.address.Extend(k.grant.token, ttl+k.grant.window.margin(), k.isPermit()))
}

func (k *Lock) replicated(r redisexec.Request) redisexec.Request {
	r.Replicas, r.ReplicaWait = k.options.replicas, k.options.replicaWait()
	return r
}

// handleExtension takes the reply to an extension that was sent then, by Extend or by the
// renewer. One that too few replicas have acknowledged does not move the deadline. It is not
// settled either: the key may live for longer than the lease knows.
func (k *Lock) handleExtension(sent time.Time, ttl time.Duration, value any, shortfall error) error {
	extended, err := redisexec.Bool(value)
	switch {
	case err != nil:
		return err
	case !extended:
		k.lose()
		return k.whyEnded()
	case shortfall != nil && k.lease.Valid():
		return shortfall
	case !k.lease.Extend(lease.SafeUntil(sent, ttl), lease.SafeUntil(sent, ttl+k.grant.window.margin())):
		k.handleLateExtension()
		return k.whyEnded()
	}
	return nil
}

// handleLateExtension handles an extension whose reply arrived after the deadline. The
// holder has been notified of the loss, so that the key's new TTL is for no caller. But if
// Unlock or Close has ended the lock meanwhile, it has released the key or handed it over,
// or is about to.
func (k *Lock) handleLateExtension() {
	if !k.lease.Ended() {
		k.releaseInBackground()
	}
}

// lose ends a lock of which the server says that it is not ours. The next waiter may
// acquire it; an Unlock that is under way must not hand it over.
func (k *Lock) lose() {
	k.noHandOver.Store(true)
	if k.lease.End(ErrLost) {
		k.locker.renewer.Forget(k.member())
		k.leave()
		k.tellEnded(lockLost)
	}
}

// TTL asks the server how long the key will live if it is not extended. The error is
// ErrNotHeld if the lock is not the caller's any more, and ErrClosed if UnlockAll or Close
// has released it.
func (k *Lock) TTL(ctx context.Context) (time.Duration, error) {
	if err := k.check("ttl"); err != nil {
		return 0, err
	}
	if k.lease.Ended() {
		return 0, wrap("ttl", k.name, k.whyEnded())
	}
	reply, err := k.locker.executor.Run(ctx, k.ttlRequest())
	if err != nil {
		return 0, wrap("ttl", k.name, err)
	}
	left, held, err := store.DecodeTTL(reply.Value)
	if err == nil && !held {
		k.lose()
		err = k.whyEnded()
	}
	if err != nil {
		return 0, wrap("ttl", k.name, err)
	}
	return left, nil
}

// ttlRequest asks whether k's token still holds it.
func (k *Lock) ttlRequest() redisexec.Request { return k.address.TTL(k.grant.token, k.isPermit()) }

// Valid reports whether the lock is held, by the local clock and without I/O. It is false
// from the deadline on. Call it after long pauses, before a step that cannot be undone.
func (k *Lock) Valid() bool {
	return k != nil && k.lease.Valid()
}

// Deadline returns until when the lock is safely held unless it is extended. It lies
// before the end of the key on the server, by 1% of the TTL, 2ms, and the way there.
func (k *Lock) Deadline() time.Time {
	if k == nil {
		return time.Time{}
	}
	return k.lease.Deadline()
}

// Context returns a context that ends when the lock does: with the cause ErrLost at its deadline, or when the
// server says that it is gone; with ErrClosed in UnlockAll and Close; with context.Canceled in Unlock.
//
// It does not descend from the context given to Lock, which bounds the waiting and nothing else. It costs a timer,
// from the first call on, and no goroutine.
func (k *Lock) Context() context.Context {
	if k == nil || k.locker == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(ErrNotHeld)
		return ctx
	}
	return k.lease.Context()
}

// Name returns the name that the lock was taken by.
func (k *Lock) Name() string {
	if k == nil {
		return ""
	}
	return k.name
}

// Fence returns a number that is higher than that of every earlier holder of the name with WithFencing, in any
// process: over a lock that expired, was handed over or forced open, a server that restarted without its data, a
// FLUSHALL.
//
// Write it beside what the lock guards, before you read that, and have reads and writes refused where a higher one
// stands. It is 0 without WithFencing.
//
// It is the server's time in microseconds, or one more than the last fence where that is
// higher. So it can go back only where the server (or, in a failover, another one) has
// lost the last fence *and* its clock is behind that: because it was set back, or by up to
// the hand-over window (see Locker.Lock) for each Detach, and each time that the lock had just been forced open.
// Within a process whose lock another process has forced open, or whose key the server has lost (by
// FLUSHALL or a restart without its data, say), it may be handed over until that window ends, with
// fences that are lower than the new holder's.
//
// While two primaries serve side by side, as some failovers have it, a fence is of the
// time at which its primary saw the acquisition. So it can be lower than one that the
// other primary has given while the reply was on its way.
func (k *Lock) Fence() int64 {
	if k == nil || k.options == nil || !k.options.fenced {
		return 0
	}
	return k.fence
}

// Token returns what the key holds while the lock is held. A client that knows it can
// release the lock, so it must not be logged. A lock that is handed over keeps its token,
// so that successive handles may have the same.
func (k *Lock) Token() string {
	if k == nil || k.grant == nil {
		return ""
	}
	token, _ := k.grant.token.(string)
	return token
}

// Format prints the lock's name, whatever the verb: its fields hold the token.
func (k *Lock) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "sluice.Lock(%q)", k.Name()) }

// check refuses a nil Lock, as LockFromContext may return it, and a zero value.
func (k *Lock) check(op string) error {
	if k == nil || k.locker == nil {
		return invalid(op, "Lock not made by a Locker")
	}
	return nil
}

// address is where a lock is on Redis. It is made once per name and shared by the handles
// of that name.
type address struct {
	store.Lock
	place  line.Place
	outage redisexec.Outage
	trips  roundTrips
	// passedOn says that the last release of this process has passed the lock on to another one.
	passedOn atomic.Bool
}

func newAddress(p *line.Process, prefix, name string) (*address, error) {
	key, err := store.MainKey(prefix, name)
	if err != nil {
		return nil, err
	}
	a := new(address)
	a.Init(scripts, key)
	a.place.Init(p)
	return a, nil
}
