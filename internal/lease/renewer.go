package lease

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/shrink"
)

// maxBatch is the most extensions that one pipeline has.
const maxBatch = 1000

// Renewable is what a Renewer extends. TTL, Deadline and Renewable are called with the
// renewer's mutex held, and must not call the renewer; the other methods are called
// without it.
type Renewable interface {
	TTL() time.Duration
	Deadline() time.Time
	// Renewable reports whether an extension can still do anything.
	Renewable() bool
	// Key is the key that is extended: it says on which server of a Cluster.
	Key() any
	// Extension returns the request that extends it, which is sent then; or false if it has
	// ended meanwhile.
	Extension() (redisexec.Request, bool)
	// HandleExtension takes the result of an extension that was sent then, and
	// reports whether what it stands for has been extended.
	HandleExtension(sent time.Time, r redisexec.Result) bool
}

// Renewer extends leases, each at a third of its TTL, for as long as they are held. It
// does so in batches: one pipeline for whatever is due, or will be within a tenth of its
// TTL. On a Cluster each server has batches of its own, so that one that hangs costs its
// own leases only.
//
// A batch is given half the time that the most pressing of its leases has left, so that
// there is always another try; what it answers later still counts. While a server does
// not answer, its other leases wait for a tenth of their TTL before they go in a batch of
// their own. An error is tried again until the lease's deadline; only the server's word
// that it does not hold any more ends it before.
//
// One goroutine does it for all leases (the loop: started by Add; it ends when no lease
// is left, or in Close), and one for each batch under way. The executor's Close waits for
// all of them.
type Renewer struct {
	executor *redisexec.Executor
	loop     *background.Loop

	mu      sync.Mutex // guards what follows
	entries map[Renewable]entry
	peak    int             // the most entries so far, see shrink.Map
	batches map[*batch]bool // under way, and not given up
	nextDue time.Time       // when the loop takes its next turn; zero while it has none
	closed  bool
}

// entry is what the renewer knows of a lease.
type entry struct {
	due   time.Time // when it is to be extended
	node  any       // the server that keeps it, see redisexec.Executor.NodeOf
	batch *batch    // the one under way that it is in; nil for none
}

// batch is one pipeline of extensions.
type batch struct {
	node    any // the server of all of them
	members []Renewable
	sent    time.Time
	giveUp  time.Time
	over    chan struct{} // closed when its results have been dealt with, or it is given up
}

// NewRenewer returns a renewer that sends through executor. It starts nothing.
func NewRenewer(executor *redisexec.Executor) *Renewer {
	r := &Renewer{executor: executor, entries: map[Renewable]entry{}, batches: map[*batch]bool{}}
	r.loop = background.NewLoop(executor.Go, r.turn)
	return r
}

// Add has m extended until Remove. It does nothing once the renewer is closed.
func (r *Renewer) Add(m Renewable) {
	now, ttl := time.Now(), m.TTL()
	// Sooner, if the acquisition took so long that not much of the TTL is left.
	due := earlier(now.Add(RenewAfter(ttl)), now.Add(m.Deadline().Sub(now)/2))
	node := r.executor.NodeOf(m.Key())
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.entries[m] = entry{due: due, node: node}
	if r.nextDue.IsZero() || due.Before(r.nextDue) {
		r.loop.Wake()
	}
}

// Remove ends m's extensions. It waits for one that is under way until ctx has ended and
// grace is over. After that there is none, except what may come of a batch that got no
// answer and was given up.
func (r *Renewer) Remove(ctx context.Context, m Renewable, grace time.Duration) {
	under := r.Forget(m)
	if under == nil {
		return
	}
	select {
	case <-under:
		return
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-under:
	case <-timer.C:
	}
}

// Forget is Remove without the wait. It returns a channel that is closed when the extension
// that is under way is over, or nil if there is none.
func (r *Renewer) Forget(m Renewable) (over <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if under := r.entries[m].batch; under != nil {
		over = under.over
	}
	delete(r.entries, m)
	r.entries = shrink.Map(r.entries, &r.peak)
	return over
}

// Close ends all extensions, except those under way, and the loop. It does not wait.
func (r *Renewer) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.entries = map[Renewable]entry{}
	r.loop.Wake()
}

// turn is one turn of the loop: it sends a batch, if one is due.
func (r *Renewer) turn() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	asked := r.giveUpBatches(now)
	pressing, next := r.findDue(now, asked)
	for under := range r.batches {
		next = earlier(next, under.giveUp)
	}
	switch {
	case len(r.entries) == 0 && (r.closed || len(r.batches) == 0):
		r.nextDue = time.Time{}
		return background.Idle
	case pressing == nil:
		r.nextDue = next
		return next.Sub(now)
	}
	b := r.beginBatch(now, r.entries[pressing].node)
	r.executor.Go(func() { r.send(b) })
	return 0
}

// giveUpBatches ends the batches that have had no answer in time, and returns the
// servers that others are under way to.
func (r *Renewer) giveUpBatches(now time.Time) (asked map[any]bool) {
	asked = map[any]bool{}
	for under := range r.batches {
		if now.Before(under.giveUp) {
			asked[under.node] = true
		} else {
			r.end(under)
		}
	}
	return asked
}

// findDue returns a lease that has to be extended now, and when another one will have
// to be. It drops those for which nothing can be done any more.
func (r *Renewer) findDue(now time.Time, asked map[any]bool) (pressing Renewable, next time.Time) {
	next = now.Add(time.Hour)
	for m, e := range r.entries {
		due := e.due
		if asked[e.node] {
			due = due.Add(Leeway(m.TTL()))
		}
		switch {
		case e.batch != nil: // Remove waits for it, so it must be found
		case !m.Renewable():
			delete(r.entries, m)
		case !due.After(now):
			pressing = m
		default:
			next = earlier(next, due)
		}
	}
	r.entries = shrink.Map(r.entries, &r.peak)
	return pressing, next
}

// beginBatch makes a batch of what is due on a server, or will be soon.
func (r *Renewer) beginBatch(now time.Time, node any) *batch {
	b := &batch{node: node, sent: now, over: make(chan struct{})}
	budget := time.Hour
	for m, e := range r.entries {
		if len(b.members) == maxBatch {
			break
		}
		if e.batch == nil && e.node == node && e.due.Sub(now) <= Leeway(m.TTL()) {
			e.batch = b
			r.entries[m] = e
			b.members = append(b.members, m)
			budget = min(budget, Budget(m.Deadline().Sub(now)))
		}
	}
	b.giveUp = now.Add(budget)
	r.batches[b] = true
	return b
}

// end ends a batch: its leases may be in another one. They are tried again soon, unless
// their results say otherwise.
func (r *Renewer) end(b *batch) {
	if !r.batches[b] {
		return // given up before
	}
	delete(r.batches, b)
	close(b.over)
	for _, m := range b.members {
		if e, still := r.entries[m]; still && e.batch == b {
			e.batch, e.due = nil, time.Now().Add(RetryAfter(m.TTL()))
			r.entries[m] = e
		}
	}
}

// send sends a batch, and dates each lease's next extension by what came of it. It runs
// in a goroutine of its own.
func (r *Renewer) send(b *batch) {
	wanted := r.stillWanted(b)
	if len(wanted) == 0 {
		return
	}
	members, requests := wanted[:0], make([]redisexec.Request, 0, len(wanted))
	for _, m := range wanted {
		if request, held := m.Extension(); held {
			members, requests = append(members, m), append(requests, request)
		}
	}
	results := r.executor.SendAll(context.Background(), requests)
	extended, nodes := make([]bool, len(requests)), make([]any, len(requests))
	for i, m := range members {
		nodes[i] = r.executor.NodeOf(m.Key()) // it may have moved
		extended[i] = m.HandleExtension(b.sent, results[i])
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(b)
	for i, m := range members {
		e, still := r.entries[m]
		if !still {
			continue
		}
		e.node = nodes[i]
		if next := b.sent.Add(RenewAfter(m.TTL())); extended[i] && e.due.Before(next) {
			e.due = next
		}
		r.entries[m] = e
	}
	r.loop.Wake()
}

// stillWanted returns those of a batch that were not removed before it is sent: none, if it
// was given up. On a busy machine that may be long before its goroutine runs, and an
// extension must not be sent after Unlock.
func (r *Renewer) stillWanted(b *batch) (members []Renewable) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.batches[b] {
		return nil
	}
	for _, m := range b.members {
		if r.entries[m].batch == b {
			members = append(members, m)
		}
	}
	if len(members) == 0 {
		r.end(b)
		r.loop.Wake()
	}
	return members
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
