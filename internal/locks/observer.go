package locks

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/lease"
)

// Hook is called when something has happened to a lock. It must not panic.
type Hook func(ctx context.Context, e Event)

// Event is what has happened to a lock.
type Event struct {
	What   What
	Name   string
	Owner  string
	Waited time.Duration // since the lock was asked for, until it was acquired or the wait ended
	Held   time.Duration // since it was acquired, until it ended
	Err    error         // why the wait ended
}

// What says which event it is.
type What int

// The events. Those from Released on say how a lock ended.
const (
	Acquired   What = iota
	TakenOver       // acquired from another caller of the Engine, without a command
	WaitFailed      // in vain
	Released
	HandedOver // to another caller of the Engine
	Lost
)

// observer tells the hooks what becomes of one lock: that it was acquired, and then once how it
// ended. A lock without hooks has none.
//
// A lock may end before the caller has it: in Close, or when it is forced open. Then the hooks
// learn of it after they have returned from Acquired. Its methods are called without a mutex of
// other parts: the hooks are the user's code.
type observer struct {
	hold   *Hold
	called time.Time // when the lock was asked for

	acquired atomic.Pointer[time.Time] // nil until the hooks have returned from Acquired
	ended    atomic.Pointer[ending]    // nil while it is held
	reported atomic.Bool               // how it ended
}

// ending is how a lock ended, and when.
type ending struct {
	at  time.Time
	how What
}

// observe gives h an observer, if it has hooks. That is in its options, which are its own then: a
// field of Hold would make each hand-over allocate more, with hooks or without.
func (h *Hold) observe() {
	if len(h.options.Hooks) == 0 {
		return
	}
	own := *h.options
	own.observer = &observer{hold: h, called: time.Now()}
	h.options = &own
}

// tellAcquired tells that h was acquired, and has its deadline watched. ctx is the caller's.
func (h *Hold) tellAcquired(ctx context.Context, how What) {
	o := h.options.observer
	if o == nil {
		return
	}
	o.begin(ctx, how)
	ended := h.lease.Context()
	context.AfterFunc(ended, func() {
		if errors.Is(context.Cause(ended), lease.ErrLost) {
			o.end(Lost)
		}
	})
}

// tellWaitFailed tells that h was not acquired, and why. ctx is the caller's.
func (h *Hold) tellWaitFailed(ctx context.Context, err error) {
	if o := h.options.observer; o != nil {
		o.tell(ctx, Event{What: WaitFailed, Waited: time.Since(o.called), Err: err})
	}
}

// tellEnded tells how h ended. Only the first call does anything.
func (h *Hold) tellEnded(how What) {
	if o := h.options.observer; o != nil {
		o.end(how)
	}
}

func (o *observer) tell(ctx context.Context, e Event) {
	e.Name, e.Owner = o.hold.name, o.hold.options.Owner
	for _, hook := range o.hold.options.Hooks {
		hook(ctx, e)
	}
}

// begin tells that the lock was acquired, and how it has ended if it has meanwhile.
func (o *observer) begin(ctx context.Context, how What) {
	now := time.Now()
	o.tell(ctx, Event{What: how, Waited: now.Sub(o.called)})
	o.acquired.Store(&now)
	o.tellEnd()
}

// end tells how the lock ended. Only the first call does anything.
func (o *observer) end(how What) {
	if o.ended.CompareAndSwap(nil, &ending{time.Now(), how}) {
		o.tellEnd()
	}
}

// tellEnd tells how the lock ended once it was acquired and has ended, whichever is noted last.
func (o *observer) tellEnd() {
	acquired, ended := o.acquired.Load(), o.ended.Load()
	if acquired != nil && ended != nil && !o.reported.Swap(true) {
		held := max(ended.at.Sub(*acquired), 0) // it may have ended first
		o.tell(context.Background(), Event{What: ended.how, Held: held})
	}
}
