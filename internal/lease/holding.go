package lease

import (
	"context"
	"sync"
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
	Receipt float64 // of what is held; it does not change

	mu    sync.Mutex // guards what follows
	until time.Time
	over  bool
	due   time.Time // when the work is to be done; zero for never
	note  any       // of who works on it, for who decides what becomes of it
	found string    // the result of the work
}

// Record notes the result of the work in the Hold that a context is for. Reports whether it has one
// that has not ended.
func Record(ctx context.Context, result string) bool {
	h, ok := ctx.Value(holdingKey{}).(*Hold)
	if !ok {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.over {
		h.found = result
	}
	return !h.over
}

// Recorded returns the result that was recorded last in the Hold that a context is for.
func Recorded(ctx context.Context) string {
	h, ok := ctx.Value(holdingKey{}).(*Hold)
	if !ok {
		return ""
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.found
}

// Note notes something in the Hold that a context is for, if it has one.
func Note(ctx context.Context, v any) {
	if h, ok := ctx.Value(holdingKey{}).(*Hold); ok {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.note = v
	}
}

// Noted returns what was noted last in the Hold that a context is for.
func Noted(ctx context.Context) any {
	h, ok := ctx.Value(holdingKey{}).(*Hold)
	if !ok {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.note
}

// ReceiptIn returns the receipt of the Hold that a context is for, 0 if it has none. A program that
// compares what handlers have seen with the server's log needs it.
func ReceiptIn(ctx context.Context) float64 {
	if h, ok := ctx.Value(holdingKey{}).(*Hold); ok {
		return h.Receipt
	}
	return 0
}

// Last notes until when it lasts.
func (h *Hold) Last(until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until = until
}

// SetDue notes when the work on it is to be done; zero for never.
func (h *Hold) SetDue(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.due = at
}

// Due returns what was noted last. What happened before that has happened for the caller.
func (h *Hold) Due() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.due
}

// WithTimeout is context.WithTimeout for a part of the work on what a context is for. The Hold, if
// there is one, notes that the work is to be done then, unless it knows of a sooner time, until the
// part is over: stop is called.
func WithTimeout(ctx context.Context, d time.Duration) (part context.Context, stop context.CancelFunc) {
	at := time.Now().Add(d)
	part, cancel := context.WithDeadline(ctx, at)
	h, ok := ctx.Value(holdingKey{}).(*Hold)
	if !ok {
		return part, cancel
	}
	before := h.Due()
	h.SetDue(backoff.Sooner(before, at))
	return part, func() {
		cancel()
		h.SetDue(before)
	}
}

// End ends it for good.
func (h *Hold) End() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
}

// Valid reports whether it is held now.
func (h *Hold) Valid() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.over && time.Until(h.until) > 0
}
