package groupcommit

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Call is a call that is sent in a group, or waits for that.
type Call[A, R any] struct {
	// Arg is what the caller has given.
	Arg A
	// Ctx is the caller's.
	Ctx context.Context

	items, bytes int
	grace        time.Duration
	// state is moved on by whichever comes first: the group that takes the call or settles
	// it, or the caller that leaves. So a result has exactly one owner.
	state  atomic.Int32
	done   chan struct{} // cap 1: there is a result for the caller
	result R

	next   *Call[A, R] // of those that wait; the committer's
	number uint64      // in the order of arrival
}

// The states of a call.
const (
	waiting   = iota // to be sent
	sent             // its group is under way
	settled          // there is a result, which its caller takes
	withdrawn        // its caller left before it was sent
	abandoned        // its caller left while it was under way
)

var (
	// ErrWithdrawn says that a call was not sent, and will not be: its context ended before.
	ErrWithdrawn = errors.New("withdrawn")
	// ErrAbandoned says that the context of a call ended while it was under way.
	ErrAbandoned = errors.New("abandoned")
)

// Wait blocks until the call is settled, or its context ends: then for the grace more, if it
// was sent. It must be called once.
func (call *Call[A, R]) Wait() (R, error) {
	select {
	case <-call.done:
		return call.result, nil
	case <-call.Ctx.Done():
	}
	var none R
	if call.Withdraw() {
		return none, ErrWithdrawn
	}
	select {
	case <-call.done:
		return call.result, nil
	case <-time.After(call.grace):
	}
	if call.state.CompareAndSwap(sent, abandoned) {
		return none, ErrAbandoned
	}
	<-call.done // it was settled at this moment
	return call.result, nil
}

// Withdraw takes the call back, and reports whether that was possible: it was not sent, and will
// not be. The caller must not call Wait then.
func (call *Call[A, R]) Withdraw() bool { return call.state.CompareAndSwap(waiting, withdrawn) }

// Settle gives the call its result, and reports whether its caller takes it: it has not left,
// and the call was not settled before.
func (call *Call[A, R]) Settle(result R) bool {
	if !call.state.CompareAndSwap(sent, settled) {
		return false
	}
	call.result = result
	call.done <- struct{}{}
	return true
}
