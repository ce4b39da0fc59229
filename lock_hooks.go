package sluice

import (
	"context"
	"sync"
	"time"
)

// observer tells the hooks what becomes of one lock: that it was acquired, and then once how it ended. A lock
// without hooks has none.
//
// A lock may end before the caller has its handle: in Close, or when it is forced open. Then the hooks learn
// of it when LockAcquired has returned. Its methods are called without a mutex of other parts: the hooks are
// the user's code.
type observer struct {
	hooks  hookList
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
	if o.hooks.have(func(h *Hooks) bool { return h.LockLost != nil }) {
		k.lease.Watch(func() { o.end(lockLost) })
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
