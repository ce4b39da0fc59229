package sluice

import (
	"context"
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/locks"
)

// LockHooks are functions that are called when something has happened to a lock: for metrics, logs
// and traces. Each is optional, and one that is nil costs nothing.
//
// The goroutine in which it happened calls them, and they hold up what comes next there: the caller
// of Lock, the renewals of other locks. So a hook must be short, and must not call the library.
// Several may run at the same time. A hook that panics is taken to have returned; what it panicked
// with is dropped. No hook may end its goroutine by runtime.Goexit, as t.FailNow does: what comes
// next there would not be done. No hook is given a token of a lock.
type LockHooks struct {
	// LockAcquired is called when Lock, TryLock, Do, LockAll, DoAll or Adopt has got a lock, before
	// that returns or calls its function. ctx is the call's.
	LockAcquired func(ctx context.Context, i LockAcquired)
	// LockWaitFailed is called when Lock, Do, LockAll or DoAll returns without the lock after
	// waiting for it. For LockAll and DoAll, its Name is the lock that they did not get; for each
	// lock that they had got, and give back, LockReleased is called. It is not called for TryLock,
	// nor where there was nothing to wait for: with bad arguments, or a Locker that was closed
	// before. ctx is the call's, and may have ended.
	LockWaitFailed func(ctx context.Context, i LockWaitFailed)
	// LockReleased is called when a lock was given up that had not been lost: by Unlock, UnlockAll,
	// Close, Detach or the end of Do. Of each lock for which LockAcquired was called (or would have
	// been) either it or LockLost is called, once, and after LockAcquired has returned. The next
	// holder's LockAcquired may come first.
	LockReleased func(i LockReleased)
	// LockLost is called when a lock is lost before it was released: at its deadline, or when the
	// server says that the holder's token does not hold the lock. It costs a timer for each lock,
	// and a goroutine that ends at once when the lock does.
	LockLost func(i LockLost)
}

// LockAcquired is what the hook LockAcquired is told.
type LockAcquired struct {
	Name       string        // as given to Lock
	Waited     time.Duration // from the call until the lock was acquired
	HandedOver bool          // by another caller of the Locker, without a command to the server
	Owner      string        // the label that WithOwner gave; empty without it
}

// LockWaitFailed is what the hook LockWaitFailed is told.
type LockWaitFailed struct {
	Name   string        // as given to Lock
	Waited time.Duration // from the call until its end
	Owner  string        // the label that WithOwner gave; empty without it
	// Err is why the wait ended: ErrLocked with the end of ctx, or of the wait of a LockAll that
	// has lost a lock; ErrUnavailable, ErrClosed, ...
	Err error
}

// LockReleased is what the hook LockReleased is told.
type LockReleased struct {
	Name       string        // as given to Lock
	Held       time.Duration // from the acquisition until now
	HandedOver bool          // to the next caller of the Locker, without a command to the server
}

// LockLost is what the hook LockLost is told.
type LockLost struct {
	Name string        // as given to Lock
	Held time.Duration // from the acquisition until the loss was noticed
}

// WithLockHooks calls the functions of h for locks. Given several times, the hooks of all are
// called, in that order: those of the Locker before those of a call. Defaults to none.
func WithLockHooks(h LockHooks) LockOption {
	isSet := h.LockAcquired != nil || h.LockWaitFailed != nil || h.LockReleased != nil || h.LockLost != nil
	return func(o *lockOptions) {
		if isSet {
			o.Hooks = append(slices.Clip(o.Hooks), h.tell)
		}
	}
}

// tell calls the hook for what has happened.
func (h *LockHooks) tell(ctx context.Context, e locks.Event) {
	switch e.What {
	case locks.Acquired, locks.TakenOver:
		callHook(h.LockAcquired != nil, func() {
			h.LockAcquired(ctx, LockAcquired{Name: e.Name, Waited: e.Waited, HandedOver: e.What == locks.TakenOver, Owner: e.Owner})
		})
	case locks.WaitFailed:
		callHook(h.LockWaitFailed != nil, func() {
			h.LockWaitFailed(ctx, LockWaitFailed{Name: e.Name, Waited: e.Waited, Owner: e.Owner, Err: e.Err})
		})
	case locks.Released, locks.HandedOver:
		callHook(h.LockReleased != nil, func() {
			h.LockReleased(LockReleased{Name: e.Name, Held: e.Held, HandedOver: e.What == locks.HandedOver})
		})
	case locks.Lost:
		callHook(h.LockLost != nil, func() { h.LockLost(LockLost{Name: e.Name, Held: e.Held}) })
	}
}
