package locks

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

// Hold is one caller's hold of a lock: on its way, held, or over. It is ready after Init, and safe
// for concurrent use once Acquire or Adopt has returned.
type Hold struct {
	// The waiter is its place in its name's queue, and belongs to the Engine's queues; the
	// lease is the deadline and the Context, and guards itself; the rest is written before
	// the caller gets the lock and not changed afterwards, except noHandOver and notOurs.

	engine  *Engine
	name    string
	options *Options // often the Engine's own: not changed
	address *address

	waiter     waitqueue.Waiter[*address]
	lease      lease.Lease
	grant      *grant      // nil before it is acquired or handed over
	fence      int64       // the last one that was taken of the grant: this lock's, if it is fenced
	noHandOver atomic.Bool // it was forced open or is not ours any more: not to be handed over
	notOurs    atomic.Bool // the server says that the token does not hold the lock
}

// Init makes h a hold of the lock with that name, which is not held yet.
func (h *Hold) Init(e *Engine, name string, options *Options) {
	h.engine, h.name, h.options = e, name, options
}

// NotHeld returns a hold of no lock. It has ended.
func NotHeld() *Hold {
	h := new(Hold)
	h.lease.End(ErrNotHeld)
	return h
}

// IsMade reports whether Init was called.
func (h *Hold) IsMade() bool { return h.engine != nil }

// Locate finds out the keys of a lock that is not to be acquired. The error is ErrInvalidName.
func (h *Hold) Locate() (err error) {
	h.address, err = h.engine.newAddress(h.options.Prefix, h.name)
	return err
}

// begin sets the first deadline of a lock that is taken now, and returns it. covered is until
// when its key lives, safely.
func (h *Hold) begin(now, deadline, covered time.Time) time.Time {
	return h.lease.Begin(now, deadline, covered, h.options.MaxHold)
}

// Extend gives the lock a TTL of at least ttl from now, and never makes it shorter.
func (h *Hold) Extend(ctx context.Context, ttl time.Duration) error {
	if !h.lease.Ask(ttl) {
		return h.whyEnded()
	}
	request := h.extendRequest(ttl)
	request.Until, request.Small = h.lease.Deadline(), true
	reply, err := h.engine.Executor.Run(ctx, request)
	if err != nil {
		unknown, valid := errors.Is(err, redisexec.ErrUnknown), h.Valid()
		switch {
		case !unknown:
			h.lease.Settle()
		case !valid:
			h.handleLateExtension()
		}
		if !valid { // it has ended meanwhile, whatever becomes of the extension
			return fmt.Errorf("%w: %w", h.whyEnded(), err)
		}
		return err
	}
	if err := h.handleExtension(reply.Sent, ttl, reply.Value, reply.Shortfall); err != nil {
		return err
	}
	if !reply.Ambiguous { // else a copy may still be on its way
		h.lease.Settle()
	}
	return nil
}

// extendRequest gives the lock a TTL of at least ttl.
func (h *Hold) extendRequest(ttl time.Duration) redisexec.Request {
	return h.replicated(h.address.Extend(h.grant.token, ttl+h.grant.window.margin(), h.isPermit()))
}

// replicated has the replicas acknowledge a request. They have a part of the TTL, since that runs
// meanwhile.
func (h *Hold) replicated(r redisexec.Request) redisexec.Request {
	r.Replicas, r.ReplicaWait = h.options.Replicas, min(h.options.TTL/4, store.ReplicaWait)
	return r
}

// handleExtension takes the reply to an extension that was sent then, by Extend or by the
// renewer. One that too few replicas have acknowledged does not move the deadline. It is not
// settled either: the key may live for longer than the lease knows.
func (h *Hold) handleExtension(sent time.Time, ttl time.Duration, value any, shortfall error) error {
	extended, err := redisexec.Bool(value)
	switch {
	case err != nil:
		return err
	case !extended:
		h.lose()
		return h.whyEnded()
	case shortfall != nil && h.lease.Valid():
		return shortfall
	case !h.lease.Extend(lease.SafeUntil(sent, ttl), lease.SafeUntil(sent, ttl+h.grant.window.margin())):
		h.handleLateExtension()
		return h.whyEnded()
	}
	return nil
}

// handleLateExtension handles an extension whose reply arrived after the deadline. The
// holder has been notified of the loss, so that the key's new TTL is for no caller. But if
// Unlock or Close has ended the lock meanwhile, it has released the key or handed it over,
// or is about to.
func (h *Hold) handleLateExtension() {
	if !h.lease.Ended() {
		h.releaseInBackground()
	}
}

// lose ends a lock of which the server says that it is not ours. The next waiter may
// acquire it; an Unlock that is under way must not hand it over.
func (h *Hold) lose() {
	h.noHandOver.Store(true)
	h.notOurs.Store(true)
	if h.lease.End(lease.ErrLost) {
		h.engine.renewer.Forget(h)
		h.leave()
		h.tellEnded(Lost)
	}
}

// TimeLeft asks the server how long the key will live if it is not extended.
func (h *Hold) TimeLeft(ctx context.Context) (time.Duration, error) {
	if h.lease.Ended() {
		return 0, h.whyEnded()
	}
	reply, err := h.engine.Executor.Run(ctx, h.inspection())
	if err != nil {
		return 0, err
	}
	left, held, err := store.DecodeTTL(reply.Value)
	switch {
	case err != nil:
		return 0, err
	case !held:
		h.lose()
		return 0, h.whyEnded()
	}
	return left, nil
}

// Valid reports whether the lock is held, by the local clock.
func (h *Hold) Valid() bool { return h.lease.Valid() }

// Deadline returns until when the lock is safely held.
func (h *Hold) Deadline() time.Time { return h.lease.Deadline() }

// Context returns the context that ends when the lock does.
func (h *Hold) Context() context.Context { return h.lease.Context() }

// Name returns the name that the lock was taken by.
func (h *Hold) Name() string { return h.name }

// Fence returns the lock's fence, 0 if it has none.
func (h *Hold) Fence() int64 {
	if h.options == nil || !h.options.Fenced {
		return 0
	}
	return h.fence
}

// Token returns what the key holds while the lock is held, "" before it is.
func (h *Hold) Token() string {
	if h.grant == nil {
		return ""
	}
	token, _ := h.grant.token.(string)
	return token
}

// KeepsOut reports whether other, of the same caller, would wait for h: it is of the same Engine
// and key, and no permit. With permits, another one may be free.
func (h *Hold) KeepsOut(other *Hold) bool {
	return h.engine == other.engine && h.options.Prefix == other.options.Prefix && h.name == other.name &&
		!h.isPermit() && h.Valid()
}

// The methods that follow are called by waitqueue, where a Hold waits and holds, and by lease,
// which renews it.

// TakeOver makes h's lock the holder of what another one has just given up, if that is
// safe: the other is not past its deadline, and the key outlives all of h's TTL, by the
// margin at most. An extension of the other that may yet be carried out never makes a TTL
// shorter; if it asked for more than h's TTL, the key could outlive that by more than the
// margin, because the token stays the same. The token also names the owner: both must have
// the same label.
//
// It writes the grant and the fence of h with a mutex of the queues held; h's caller reads them
// after its turn.
func (h *Hold) TakeOver(holder waitqueue.Holder) (deadline time.Time, ok bool) {
	from, _ := holder.(*Hold)
	deadline, covered, asked := from.lease.Bounds()
	g, fence := from.grant, from.fence
	held := time.Since(g.sent)
	now := g.sent.Add(held) // time.Now reads the clock of the wall too, which takes as long again
	until := lease.SafeUntil(now, h.options.TTL)
	// With more to spare than the margin, a crash of this process would block others for
	// longer than h's TTL says.
	spare := covered.Sub(until)
	asked = max(asked, g.asked)
	safe := now.Before(deadline) && held < time.Duration(g.window) && spare >= 0 && spare <= g.window.margin() &&
		asked <= h.options.TTL && g.replicas >= h.options.Replicas &&
		from.options.Owner == h.options.Owner && !from.noHandOver.Load()
	if safe && h.options.Fenced {
		fence, safe = g.fences.after(fence)
	}
	if !safe {
		return time.Time{}, false
	}
	if replicas := h.options.Replicas; asked != g.asked || replicas != g.replicas {
		changed := *g
		changed.asked, changed.replicas = asked, replicas
		g = &changed
	}
	h.grant, h.fence = g, fence
	return h.begin(now, until, covered), true
}

// ForbidHandOver keeps the lock from being handed over.
func (h *Hold) ForbidHandOver() { h.noHandOver.Store(true) }

// RetryInterval is the longest time between two polls, and between two inspections of the
// holder behind which the lock waits.
func (h *Hold) RetryInterval() time.Duration { return h.options.RetryInterval }

// Inspect has the janitor ask the server whether the token still holds the lock, and ends the lock
// if it does not: after the key was deleted, evicted or forced open, the callers that wait
// behind it would otherwise learn of it at the deadline.
func (h *Hold) Inspect() {
	h.engine.janitor.Add(lease.Release{Token: h, Request: h.inspection(), Answered: h.handleInspection})
}

// inspection returns the request that tells whether the token still holds the lock.
func (h *Hold) inspection() redisexec.Request {
	return h.address.TTL(h.grant.token, h.isPermit())
}

// handleInspection ends a lock that the server says is not held by its token. Where that
// was released or handed over meanwhile, the lock has ended before.
func (h *Hold) handleInspection(value any) {
	if _, held, err := store.DecodeTTL(value); err == nil && !held {
		h.lose()
	}
}

// TTL is the TTL that each renewal asks for.
func (h *Hold) TTL() time.Duration { return h.options.TTL }

// Renewable reports whether a renewal can do anything for the lock.
func (h *Hold) Renewable() bool { return h.lease.Renewable() }

// Key is the lock's key.
func (h *Hold) Key() any { return h.address.RoutingKey() }

// Replicas is for how many replicas a renewal waits, and how long.
func (h *Hold) Replicas() any {
	if h.options.Replicas <= 0 {
		return nil
	}
	r := h.replicated(redisexec.Request{})
	return [2]int64{int64(r.Replicas), int64(r.ReplicaWait)}
}

// Extension returns the request that renews the lock, or false if it has ended.
func (h *Hold) Extension() (redisexec.Request, bool) {
	return h.extendRequest(h.options.TTL), h.lease.Ask(h.options.TTL)
}

// HandleExtension takes the result of a renewal, and reports whether it succeeded.
func (h *Hold) HandleExtension(sent time.Time, r redisexec.Result) bool {
	extended := r.Err == nil && h.handleExtension(sent, h.options.TTL, r.Value, r.Shortfall) == nil
	if extended || r.Outcome == redisexec.Rejected || r.Outcome == redisexec.Unavailable || r.Outcome == redisexec.NotSent {
		h.lease.Settle()
	}
	return extended
}

// address is where a lock is on Redis. It is made once per name and shared by the holds
// of that name.
type address struct {
	store.Lock
	place  line.Place
	outage redisexec.Outage
	trips  roundTrips
	// passedOn says that the last release of this process has passed the lock on to another one.
	passedOn atomic.Bool
}

// newAddress returns the address of a lock. The error is ErrInvalidName.
func (e *Engine) newAddress(prefix, name string) (*address, error) {
	key, err := store.MainKey(prefix, name)
	if err != nil {
		return nil, err
	}
	a := new(address)
	a.Init(e.scripts, key)
	a.place.Init(e.process)
	return a, nil
}
