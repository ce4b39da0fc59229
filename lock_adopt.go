package sluice

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/shrink"
	"github.com/sluice-go/sluice/internal/store"
)

// Adopt returns a handle for a lock that was taken elsewhere, in another process for example, and whose token the
// caller has been told: so that one process begins a section, and another one ends it.
//
// The process that has taken the lock lets go of its own handle with Lock.Detach, which returns the token. The
// token is a secret: see Lock.Token.
//
// Adopt asks the server whether the token holds the lock, and gives it the TTL of this Locker, or that of
// opts, if that is longer than what is left. Name, WithLockPrefix and WithPermits must be the ones that the
// lock was taken by. With WithAutoRenew the lock is renewed, and with WithMaxHold the time counts from now.
// The label of WithOwner stays the first holder's. With WithFencing the handle has a fence of its own, which
// is higher than the first holder's and lower than those of later holders; without it, Fence is 0, since the
// first holder's is not kept on the server.
//
// The lock is released by Unlock, UnlockAll and Close as others are. It always goes back to Redis then, and is not
// handed over to a caller of this Locker.
//
// Adopt a token once. A second Adopt of it succeeds too while the lock is held, and both handles are valid: only
// their fences tell them apart. So a task that brings a token, and may be handed out again, needs a fence.
//
// If the first handle was not let go by Detach, both are valid. Whichever is unlocked first releases the
// lock, or hands it over in its own process, and the other one learns of that when it next extends; Close of
// the first process releases it, too. The fences of those to whom the first process hands it over may then be
// lower than the adopted handle's, until it goes back to Redis.
//
// The error is ErrNotHeld if the token does not hold the lock, also where only WithPermits is missing or too much; ErrLost if the reply took longer than the TTL;
// ErrInvalid, as for a token that no Locker has made; ErrClosed; ErrUnknown after a lost reply;
// ErrUnavailable; ErrUnderReplicated; or what Redis said. It does not wait for anything but the reply. After
// an error the lock is as it was, except that its TTL may have become longer.
func (l *Locker) Adopt(ctx context.Context, name, token string, opts ...LockOption) (*Lock, error) {
	k, err := l.anyLock("adopt", name, opts)
	if err != nil {
		return nil, err
	}
	owner, ok := ownerIn(token)
	if !ok {
		return nil, invalid("adopt", "not a token of a Locker")
	}
	own := *k.options
	own.owner = owner
	k.options = &own
	k.observe()
	if err := k.adopt(ctx, token); err != nil {
		return nil, wrap("adopt", name, err)
	}
	if k.options.renew {
		l.renewer.Add(k.member())
	}
	k.tellAcquired(ctx, false)
	return k, nil
}

// adopt makes k the holder of what the token holds.
func (k *Lock) adopt(ctx context.Context, token string) error {
	g := &grant{token: token, window: shortestWindow, apart: true}
	k.grant = g
	request := k.replicated(k.address.Adopt(token, k.options.ttl+g.window.margin(), k.isPermit(), k.options.fenced))
	request.Small = true
	reply, err := k.locker.executor.Run(ctx, request)
	if err != nil {
		return err
	}
	held, fence, err := store.DecodeAdopted(reply.Value)
	switch {
	case err != nil:
		return err
	case !held:
		return ErrNotHeld
	case reply.Shortfall != nil:
		return reply.Shortfall
	}
	if k.options.fenced {
		k.fence, g.fences = fence, fences{first: fence, block: 1, since: time.Now()}
	}
	g.sent, g.replicas = reply.Sent, k.options.replicas
	k.begin(g.sent, lease.SafeUntil(g.sent, k.options.ttl), lease.SafeUntil(g.sent, k.options.ttl+g.window.margin()))
	switch {
	case !k.lease.Valid():
		return k.cameTooLate()
	case !k.locker.apart.add(k):
		return ErrClosed
	}
	return nil
}

// Detach ends the handle, and leaves the lock held: for the process that is told the token, which it returns, and
// which calls Adopt. The Context ends with context.Canceled.
//
// This process sends nothing for the lock after that, and no request of it that is carried out later can take or
// release the lock.
//
// The lock's TTL goes on: it is free at what was the Deadline, soon after, unless it is adopted before. Call
// Extend before Detach to give the other process more time. If WithAutoRenew extends the lock at this moment,
// Detach waits for that until ctx ends, and 15ms. It sends nothing itself. An extension that has no reply by
// then may still be carried out while the token holds the lock: the TTL then becomes no shorter, but lasts from
// that moment.
//
// The error is ErrNotHeld or ErrClosed, as that of Unlock; the handle is used up in any case. A lock of Do or
// of a LockSet may be detached too: Do then returns ErrLost, and the set's Unlock ErrNotHeld.
func (k *Lock) Detach(ctx context.Context) (token string, err error) {
	if err := k.check("detach"); err != nil {
		return "", err
	}
	if !k.lease.End(nil) {
		return "", wrap("detach", k.name, k.whyEnded())
	}
	l := k.locker
	if k.options.renew {
		l.renewer.Remove(ctx, k.member(), redisexec.ReplyGrace)
	}
	late := errors.Is(k.lease.Cause(), ErrLost)
	if late { // no process may rely on it
		k.releaseInBackground()
	}
	k.leave()
	k.tellEnded(k.releasedOrLost(nil))
	if late {
		return "", wrap("detach", k.name, ErrNotHeld)
	}
	return k.Token(), nil
}

// apartLocks are the locks of a Locker that are held outside of the queues of its callers, and so never handed over.
// The zero value is ready.
type apartLocks struct {
	mu     sync.Mutex // guards what follows
	locks  map[*Lock]struct{}
	peak   int // the most locks so far, see shrink.Map
	closed bool
}

// add reports false if the Locker is closed. It drops some locks that have ended and were not released, so that
// forgetting to leaks nothing.
func (a *apartLocks) add(k *Lock) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	if a.locks == nil {
		a.locks = map[*Lock]struct{}{}
	}
	looks := 4
	for other := range a.locks {
		if looks--; looks < 0 {
			break
		}
		if !other.Valid() {
			delete(a.locks, other)
		}
	}
	a.locks[k] = struct{}{}
	a.peak = max(a.peak, len(a.locks))
	return true
}

func (a *apartLocks) remove(k *Lock) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.locks, k)
	a.locks = shrink.Map(a.locks, &a.peak)
}

// all returns the locks, those with a key, or with any if it is empty.
func (a *apartLocks) all(key string) (locks []*Lock) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k := range a.locks {
		if key == "" || k.address.Key() == key {
			locks = append(locks, k)
		}
	}
	return locks
}

func (a *apartLocks) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
}
