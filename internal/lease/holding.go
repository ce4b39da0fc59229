package lease

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
)

// Holding is what a context knows of what its work holds.
type Holding interface {
	// Valid reports whether it is held now, by the local clock.
	Valid() bool
}

type holdingKey struct{}

// WithHolding returns a context for work on something that is held.
func WithHolding(ctx context.Context, h Holding) context.Context {
	return context.WithValue(ctx, holdingKey{}, h)
}

// IsHeld reports whether what a context is for is held now. It is false if the context is for
// nothing that is held.
func IsHeld(ctx context.Context) bool {
	h, ok := ctx.Value(holdingKey{}).(Holding)
	return ok && h.Valid()
}

// Hold is a Holding of which one goroutine says until when it lasts. Unlike a Lease it may be valid
// again: the answer to an extension may come after the time until which it was known to last. The
// zero value is not held.
type Hold struct {
	// What it is of does not change.
	Receipt  float64
	Handlers *atomic.Int64 // how many can do such work at a time, nil if that is not known

	mu       sync.Mutex // guards what follows
	until    time.Time
	over     bool
	returned bool      // the work has
	deadline time.Time // by when the handler must return; zero for never
	note     any       // of who works on it, for who decides what becomes of it
	found    string    // the result of the work
}

// in calls do with the Hold that a context is for, locked, if it has one.
func in(ctx context.Context, do func(h *Hold)) {
	if h, ok := ctx.Value(holdingKey{}).(*Hold); ok {
		h.mu.Lock()
		defer h.mu.Unlock()
		do(h)
	}
}

// Record notes the result of the work in the Hold that a context is for, unless that has ended. It
// reports whether the context is that of work which has not returned, and whether the result was
// noted.
func Record(ctx context.Context, result string) (works, noted bool) {
	in(ctx, func(h *Hold) {
		if works, noted = !h.returned, !h.over; noted {
			h.found = result
		}
	})
	return works, noted
}

// Recorded returns the result that was recorded last in the Hold that a context is for.
func Recorded(ctx context.Context) (result string) {
	in(ctx, func(h *Hold) { result = h.found })
	return result
}

// Note notes something in the Hold that a context is for, if it has one.
func Note(ctx context.Context, v any) { in(ctx, func(h *Hold) { h.note = v }) }

// Noted returns what was noted last in the Hold that a context is for.
func Noted(ctx context.Context) (v any) {
	in(ctx, func(h *Hold) { v = h.note })
	return v
}

// ReceiptIn returns the receipt of the Hold that a context is for, 0 if it has none. A program that
// compares what handlers have seen with the server's log needs it.
func ReceiptIn(ctx context.Context) (receipt float64) {
	in(ctx, func(h *Hold) { receipt = h.Receipt })
	return receipt
}

// HandlersIn returns how many can do work at a time such as that which a context is for, 0 if that
// is not known.
func HandlersIn(ctx context.Context) (n int) {
	in(ctx, func(h *Hold) {
		if h.Handlers != nil {
			n = int(h.Handlers.Load())
		}
	})
	return n
}

// Last notes until when it lasts.
func (h *Hold) Last(until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until = until
}

// SetDeadline notes by when the handler must return; zero for never.
func (h *Hold) SetDeadline(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deadline = at
}

// Deadline returns what was noted last. What happened before that has happened for the caller.
func (h *Hold) Deadline() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.deadline
}

// WithTimeout is context.WithTimeout for a part of a handler's work, as a Mux gives to one kind of
// task. Until stop is called, the Hold of ctx has the end of the timeout as its Deadline, if that
// is the sooner one. A handler that has not returned by Grace after that is stuck.
func WithTimeout(ctx context.Context, d time.Duration) (part context.Context, stop context.CancelFunc) {
	at := time.Now().Add(d)
	part, cancel := context.WithDeadline(ctx, at)
	h, ok := ctx.Value(holdingKey{}).(*Hold)
	if !ok {
		return part, cancel
	}
	before := h.Deadline()
	h.SetDeadline(backoff.Sooner(before, at))
	return part, func() {
		cancel()
		h.SetDeadline(before)
	}
}

// End ends it for good.
func (h *Hold) End() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
}

// Return ends it for good, since the work has returned. It has no deadline any more.
func (h *Hold) Return() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over, h.returned, h.deadline = true, true, time.Time{}
}

// Valid reports whether it is held now.
func (h *Hold) Valid() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.over && time.Until(h.until) > 0
}
