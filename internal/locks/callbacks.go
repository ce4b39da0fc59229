package locks

import (
	"time"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/waitqueue"
)

// The methods in this file are called by waitqueue, where a Hold waits and holds, and by lease, which
// renews it.
var (
	_ waitqueue.Holder = (*Hold)(nil)
	_ lease.Renewable  = (*Hold)(nil)
)

// TakeOver makes h's lock the holder of what another one has just given up, if that is
// safe: the other is not past its deadline, and the key outlives all of h's TTL, by the
// margin at most. An extension of the other that may yet be carried out never makes a TTL
// shorter; if it asked for more than h's TTL, the key could outlive that by more than the
// margin, because the token stays the same. The token also names the owner: both must have
// the same label.
//
// It writes the grant and the fence of h with a mutex of the queues held; h's caller reads them after its turn.
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
func (h *Hold) RetryInterval() time.Duration { return h.options.Retry }

// Inspect has the lock's key inspected in the background.
func (h *Hold) Inspect() { h.engine.inspector.add(h) }

// inspection returns the request that tells whether the token still holds the lock.
func (h *Hold) inspection() redisexec.Request {
	return h.address.TTL(h.grant.token, h.isPermit())
}

// handleInspection ends a lock that the server says is not held by its token. Where that
// was released or handed over meanwhile, the lock has ended before. What got no answer
// changes nothing.
func (h *Hold) handleInspection(r redisexec.Result) {
	if _, held, err := store.DecodeTTL(r.Value); r.Err == nil && err == nil && !held {
		h.lose()
	}
}

// TTL is the TTL that each renewal asks for.
func (h *Hold) TTL() time.Duration { return h.options.TTL }

// Renewable reports whether a renewal can do anything for the lock.
func (h *Hold) Renewable() bool { return h.lease.Renewable() }

// Key is the lock's key.
func (h *Hold) Key() any { return h.address.RoutingKey() }

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
