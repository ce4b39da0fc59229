package sluice

import (
	"context"
	"sync"
	"time"
)

// LockHooks are functions that are called when something has happened to a lock: for metrics, logs and traces. Each is
// optional, and one that is nil costs nothing.
//
// The goroutine in which it happened calls them, and they hold up what comes next there: the caller of Lock, the
// renewals of other locks. So a hook must be short, and must not call the library. Several may run at the same time. A
// hook that panics is taken to have returned; what it panicked with is dropped. No hook may end its goroutine by
// runtime.Goexit, as t.FailNow does: what comes next there would not be done. No hook is given a token of a lock.
type LockHooks struct {
	// LockAcquired is called when Lock, TryLock, Do, LockAll, DoAll or Adopt has got a lock, before that returns
	// or calls its function. ctx is the call's.
	LockAcquired func(ctx context.Context, i LockAcquired)
	// WaitEnded is called, instead, when Lock, Do, LockAll or DoAll has waited in vain: it returns without the lock. Of
	// LockAll and DoAll it is told the name of the lock that they did not get; of those that they had got, and give
	// back, LockReleased is called. It is not called for TryLock, nor where there was nothing to wait for: with bad
	// arguments, or a Locker that was closed before. ctx is the call's, and may have ended.
	WaitEnded func(ctx context.Context, i WaitEnded)
	// LockReleased is called when a lock was given up that had not been lost: by Unlock, UnlockAll, Close, Detach
	// or the end of Do. Of each lock for which LockAcquired was called (or would have been) either it or LockLost
	// is called, once, and after LockAcquired has returned. The next holder's LockAcquired may come first.
	LockReleased func(i LockReleased)
	// LockLost is called when a lock is lost before it was released: at its deadline, or when the server says that
	// the holder's token does not hold the lock. It costs a timer for each lock.
	LockLost func(i LockLost)
}

// LockAcquired is what the hook LockAcquired is told.
type LockAcquired struct {
	Name       string        // as given to Lock
	Waited     time.Duration // from the call until the lock was acquired
	HandedOver bool          // by another caller of the Locker, without a command to the server
	Owner      string        // the label that WithOwner gave; empty without it
}

// WaitEnded is what the hook WaitEnded is told.
type WaitEnded struct {
	Name   string        // as given to Lock
	Waited time.Duration // from the call until its end
	Owner  string        // the label that WithOwner gave; empty without it
	Err    error         // why the wait ended: ErrLocked with the end of ctx, or of the wait of a LockAll that has lost a lock; ErrUnavailable, ErrClosed, ...
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

// WithLockHooks has h called for locks. Given several times, the hooks of all are called, in that order:
// those of the Locker before those of a call. Defaults to none.
func WithLockHooks(h LockHooks) LockOption {
	isSet := h.LockAcquired != nil || h.WaitEnded != nil || h.LockReleased != nil || h.LockLost != nil
	return func(o *lockOptions) { o.hooks = o.hooks.with(&h, isSet) }
}

// observer tells the hooks what becomes of one lock: that it was acquired, and then once how it ended. A lock
// without hooks has none.
//
// A lock may end before the caller has its handle: in Close, or when it is forced open. Then the hooks learn
// of it when LockAcquired has returned. Its methods are called without a mutex of other parts: the hooks are
// the user's code.
type observer struct {
	hooks  hookList[LockHooks]
	name   string
	owner  string
	called time.Time // when the lock was asked for

	mu       sync.Mutex // guards what follows; no hook is called with it
	acquired time.Time
	reported bool   // LockAcquired has returned
	early    func() // tells how the lock ended, if it did before that
	ended    bool
}

// lockEnding is how a lock ended.
type lockEnding int

const (
	lockReleased lockEnding = iota
	lockHandedOver
	lockLost
)

// observe gives k an observer, if it has hooks. That is in its options, which are its own then: a field of Lock
// would make each hand-over allocate more, with hooks or without.
func (k *Lock) observe() {
	if len(k.options.hooks) == 0 {
		return
	}
	own := *k.options
	own.observer = &observer{hooks: own.hooks, name: k.name, owner: own.owner, called: time.Now()}
	k.options = &own
}

// tellAcquired tells that k was acquired, and has its deadline watched. ctx is the caller's.
func (k *Lock) tellAcquired(ctx context.Context, handedOver bool) {
	o := k.options.observer
	if o == nil {
		return
	}
	o.begin(ctx, handedOver)
	if o.hooks.have(func(h *LockHooks) bool { return h.LockLost != nil }) {
		k.lease.Watch(func() { o.end(lockLost) })
	}
}

// tellWaitEnded tells that k was not acquired, and why. ctx is the caller's.
func (k *Lock) tellWaitEnded(ctx context.Context, err error) {
	o := k.options.observer
	if o == nil {
		return
	}
	ended := WaitEnded{Name: o.name, Waited: time.Since(o.called), Owner: o.owner, Err: err}
	for _, h := range o.hooks {
		callHook(h.WaitEnded != nil, func() { h.WaitEnded(ctx, ended) })
	}
}

// tellEnded tells how k ended. Only the first call does anything.
func (k *Lock) tellEnded(how lockEnding) {
	if o := k.options.observer; o != nil {
		o.end(how)
	}
}

func (o *observer) begin(ctx context.Context, handedOver bool) {
	now := time.Now()
	o.setAcquired(now)
	acquired := LockAcquired{Name: o.name, Waited: now.Sub(o.called), HandedOver: handedOver, Owner: o.owner}
	for _, h := range o.hooks {
		callHook(h.LockAcquired != nil, func() { h.LockAcquired(ctx, acquired) })
	}
	if early := o.setReported(); early != nil {
		early()
	}
}

func (o *observer) setAcquired(at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.acquired = at
}

func (o *observer) setReported() (early func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reported, early, o.early = true, o.early, nil
	return early
}

func (o *observer) end(how lockEnding) {
	if tell := o.ending(how, time.Now()); tell != nil {
		tell()
	}
}

// ending notes how the lock ended. It returns what tells the hooks, or nil if that has been done, or is to be done
// later.
func (o *observer) ending(how lockEnding, now time.Time) (tell func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return nil
	}
	o.ended = true
	tell = func() { o.tell(how, now) }
	if !o.reported {
		o.early, tell = tell, nil
	}
	return tell
}

// tell is called after LockAcquired: acquired does not change any more.
func (o *observer) tell(how lockEnding, at time.Time) {
	held := max(at.Sub(o.acquired), 0) // it may have ended first
	for _, h := range o.hooks {
		callHook(how != lockLost && h.LockReleased != nil, func() {
			h.LockReleased(LockReleased{Name: o.name, Held: held, HandedOver: how == lockHandedOver})
		})
		callHook(how == lockLost && h.LockLost != nil, func() { h.LockLost(LockLost{Name: o.name, Held: held}) })
	}
}
