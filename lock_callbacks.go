package sluice

import (
	"time"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/waitqueue"
)

// member is a Lock as the internal packages see it: something that waits and holds
// (waitqueue), is extended and inspected (lease), and is released when its outcome is unknown
// (redisexec). It is a type of its own, because the methods are exported and not for users.
type member Lock

var (
	_ waitqueue.Holder         = (*member)(nil)
	_ lease.Renewable          = (*member)(nil)
	_ lease.Inspectable        = (*member)(nil)
	_ redisexec.UnknownHandler = (*member)(nil)
)

func (k *Lock) member() *member { return (*member)(k) }

func (m *member) lock() *Lock { return (*Lock)(m) }

// Deadline returns until when the lock is safely held.
func (m *member) Deadline() time.Time { return m.lease.Deadline() }

// TakeOver makes m's lock the holder of what another one has just given up, if that is
// safe: the other is not past its deadline, and the key outlives all of m's TTL, by the
// margin at most. An extension of the other that may yet be carried out never makes a TTL
// shorter; if it asked for more than m's TTL, the key could outlive that by more than the
// margin, because the token stays the same. The token also names the owner: both must have
// the same label.
//
// It writes the grant and the fence of m with a mutex of the queues held; m's caller reads them after its turn.
func (m *member) TakeOver(holder waitqueue.Holder) (deadline time.Time, ok bool) {
	from, _ := holder.(*member)
	deadline, covered, asked := from.lease.Bounds()
	g, fence := from.grant, from.fence
	held := time.Since(g.sent)
	now := g.sent.Add(held) // time.Now reads the clock of the wall too, which takes as long again
	until := lease.SafeUntil(now, m.options.ttl)
	// With more to spare than the margin, a crash of this process would block others for
	// longer than m's TTL says.
	spare := covered.Sub(until)
	asked = max(asked, g.asked)
	safe := now.Before(deadline) && held < time.Duration(g.window) && spare >= 0 && spare <= g.window.margin() &&
		asked <= m.options.ttl && g.replicas >= m.options.replicas &&
		from.options.owner == m.options.owner && !from.noHandOver.Load()
	if safe && m.options.fenced {
		fence, safe = g.fences.after(fence)
	}
	if !safe {
		return time.Time{}, false
	}
	if replicas := m.options.replicas; asked != g.asked || replicas != g.replicas {
		changed := *g
		changed.asked, changed.replicas = asked, replicas
		g = &changed
	}
	m.grant, m.fence = g, fence
	return m.lock().begin(now, until, covered), true
}

// ForbidHandOver keeps the lock from being handed over.
func (m *member) ForbidHandOver() { m.noHandOver.Store(true) }

// RetryInterval is the longest time between two polls, and between two inspections of the
// holder behind which the lock waits.
func (m *member) RetryInterval() time.Duration { return m.options.retry }

// Inspect has the lock's key inspected in the background.
func (m *member) Inspect() { m.locker.inspector.Add(m) }

// Inspection returns the request that tells whether the token still holds the lock.
func (m *member) Inspection() redisexec.Request {
	return m.lock().ttlRequest()
}

// HandleInspection ends a lock that the server says is not held by its token. Where that
// was released or handed over meanwhile, the lock has ended before. What got no answer
// changes nothing.
func (m *member) HandleInspection(r redisexec.Result) {
	if _, held, err := store.DecodeTTL(r.Value); r.Err == nil && err == nil && !held {
		m.lock().lose()
	}
}

// TTL is the TTL that each renewal asks for.
func (m *member) TTL() time.Duration { return m.options.ttl }

// Renewable reports whether a renewal can do anything for the lock.
func (m *member) Renewable() bool { return m.lease.Renewable() }

// Key is the lock's key.
func (m *member) Key() any { return m.address.RoutingKey() }

// Extension returns the request that renews the lock, or false if it has ended.
func (m *member) Extension() (redisexec.Request, bool) {
	return m.lock().extendRequest(m.options.ttl), m.lease.Ask(m.options.ttl)
}

// HandleExtension takes the result of a renewal, and reports whether it succeeded.
func (m *member) HandleExtension(sent time.Time, r redisexec.Result) bool {
	extended := r.Err == nil && m.lock().handleExtension(sent, m.options.ttl, r.Value, r.Shortfall) == nil
	if extended || r.Outcome == redisexec.Rejected || r.Outcome == redisexec.Unavailable || r.Outcome == redisexec.NotSent {
		m.lease.Settle()
	}
	return extended
}

// OutcomeUnknown has the lock released: it may have been acquired for no caller.
func (m *member) OutcomeUnknown(over bool) {
	r := m.lock().backgroundRelease()
	r.Late = !over
	m.locker.janitor.Add(r)
}
