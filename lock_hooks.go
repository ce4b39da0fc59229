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
	hooks  *Hooks
	name   string
	owner  string
	called time.Time // when the lock was asked for

	mu       sync.Mutex // guards what follows; no hook is called with it
	acquired time.Time
	told     bool   // LockAcquired has returned
	early    func() // tells how the lock ended, if it did before told
	ended    bool
}

// ending is how a lock ended.
type ending int

const (
	released ending = iota
	handedOver
	lost
)

// observe gives k an observer, if it has hooks. That is in its options, which are its own then: a field of Lock
// would make each hand-over allocate more, with hooks or without.
func (k *Lock) observe() {
	if k.options.hooks == nil {
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
	if o.hooks.LockLost != nil {
		k.lease.Watch(func() { o.end(lost) })
	}
}

// tellEnded tells how k ended. Only the first call does anything.
func (k *Lock) tellEnded(how ending) {
	if o := k.options.observer; o != nil {
		o.end(how)
	}
}

func (o *observer) begin(ctx context.Context, handedOver bool) {
	now := time.Now()
	o.setAcquired(now)
	if hook := o.hooks.LockAcquired; hook != nil {
		hook(ctx, LockAcquired{Name: o.name, Waited: now.Sub(o.called), HandedOver: handedOver, Owner: o.owner})
	}
	if early := o.setTold(); early != nil {
		early()
	}
}

func (o *observer) setAcquired(at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.acquired = at
}

func (o *observer) setTold() (early func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.told, early, o.early = true, o.early, nil
	return early
}

func (o *observer) end(how ending) {
	if tell := o.ending(how, time.Now()); tell != nil {
		tell()
	}
}

// ending notes how the lock ended. It returns what tells the hooks, or nil if that has been done, or is to be done
// later.
func (o *observer) ending(how ending, now time.Time) (tell func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return nil
	}
	o.ended = true
	tell = func() { o.tell(how, now) }
	if !o.told {
		o.early, tell = tell, nil
	}
	return tell
}

// tell is called after told: acquired does not change any more.
func (o *observer) tell(how ending, at time.Time) {
	held := max(at.Sub(o.acquired), 0) // it may have ended first
	switch {
	case how != lost && o.hooks.LockReleased != nil:
		o.hooks.LockReleased(LockReleased{Name: o.name, Held: held, HandedOver: how == handedOver})
	case how == lost && o.hooks.LockLost != nil:
		o.hooks.LockLost(LockLost{Name: o.name, Held: held})
	}
}
