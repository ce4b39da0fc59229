package lease

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/shrink"
)

const (
	// maxBatch is the most extensions that one pipeline has.
	maxBatch = 1000
	// maxFresh is the most batches under way to one server that have just been sent. Forty at
	// once, as after a second in which nothing ran, are all answered at about the same time,
	// which may be too late for all of them.
	maxFresh = 4
)

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
	// Replicas is what an extension waits for beside its server, nil for nothing: an answer to a batch
	// comes when all of it has been waited for.
	Replicas() any
	// Extension returns the request that extends it, which is sent then; or false if it has
	// ended meanwhile, and nothing must be sent: it has ended when it is removed.
	Extension() (redisexec.Request, bool)
	// HandleExtension takes the result of an extension that was sent then, and
	// reports whether what it stands for has been extended.
	HandleExtension(sent time.Time, r redisexec.Result) bool
}

// Renewer extends leases, each at a third of its TTL, for as long as they are held. It
// does so in batches: one pipeline for whatever is due, or will be within a tenth of its
// TTL. On a Cluster each server has batches of its own, so that one that hangs costs its
// own leases only; and so have, on each server, leases that wait for replicas. Leases of different TTLs
// wait for one another for up to a tenth of theirs.
//
// A batch is given half the time that the most pressing of its leases has left, five seconds at
// most, so that there is always another try; what it answers later still counts. While a server
// does not answer, its other leases wait for a tenth of their TTL before they go in a batch of
// their own; and while four batches are under way that were sent within a tenth of the shortest
// TTL, until that has passed. An error is tried again until the lease's deadline; only the server's
// word that it does not hold any more ends it before.
//
// One goroutine, the loop, does it for all leases, and one for each batch under way.
type Renewer struct {
	executor *redisexec.Executor
	loop     *background.Loop

	mu      sync.Mutex // guards what follows
	entries map[Renewable]*entry
	peak    int           // the most entries so far, see shrink.Map
	nodes   map[any]*node // that keep leases, see nodeOf
	nextDue time.Time     // when the loop takes its next turn; zero while it has none
	closed  bool
}

// node is a server, as the renewer sees it.
type node struct {
	waiting  schedule[*entry] // the leases that are in no batch, by when they must be extended
	batches  map[*batch]bool  // under way, and not given up
	shortest time.Duration    // of the TTLs that it has had; 0 before the first
}

// entry is what the renewer knows of a lease. Its place in the schedule is a tenth of its TTL
// after it is due.
type entry struct {
	place
	lease Renewable
	due   time.Time // when it is to be extended
	node  *node     // the server that keeps it
	batch *batch    // the one under way that it is in; nil for none
}

// batch is one pipeline of extensions.
type batch struct {
	node    *node // the server of all of them
	members []*entry
	sent    time.Time
	giveUp  time.Time
	over    chan struct{} // closed when its results have been dealt with, or it is given up
}

// NewRenewer returns a renewer that sends through executor. It starts nothing.
func NewRenewer(executor *redisexec.Executor) *Renewer {
	r := &Renewer{executor: executor, entries: map[Renewable]*entry{}, nodes: map[any]*node{}}
	// The loop's goroutine: Add wakes it. It ends when no lease is left and no batch under way, or
	// in Close. The executor's Close waits for it.
	r.loop = background.NewLoop(executor.Go, r.turn)
	return r
}

// Add has m extended until Remove. It does nothing once the renewer is closed.
func (r *Renewer) Add(m Renewable) {
	now, ttl := time.Now(), m.TTL()
	// Sooner, if the acquisition took so long that not much of the TTL is left.
	due := backoff.Sooner(now.Add(RenewAfter(ttl)), now.Add(m.Deadline().Sub(now)/2))
	id := r.nodeOf(m)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	e := r.entries[m]
	if e == nil {
		e = &entry{lease: m}
		r.entries[m] = e
	}
	e.due = due
	r.wait(e, id)
	if r.nextDue.IsZero() || due.Before(r.nextDue) {
		r.loop.Wake()
	}
}

// nodeOf returns which node keeps a lease: a server or, of leases that wait for the same replicas, a part
// of it.
func (r *Renewer) nodeOf(m Renewable) any {
	id := r.executor.NodeOf(m.Key())
	if replicas := m.Replicas(); replicas != nil {
		return [2]any{id, replicas}
	}
	return id
}

// wait puts a lease into the schedule of the server that keeps it, or moves it there. One that is
// in a batch stays where it is: it is put back when that is over.
func (r *Renewer) wait(e *entry, id any) {
	if e.batch != nil {
		return
	}
	n := r.nodes[id]
	if n == nil {
		n = &node{batches: map[*batch]bool{}}
		r.nodes[id] = n
	}
	if e.node != nil && e.node != n {
		e.node.waiting.remove(e)
	}
	e.node = n
	n.wait(e)
}

// wait puts a lease into the schedule, or moves it there.
func (n *node) wait(e *entry) {
	ttl := e.lease.TTL()
	if n.shortest == 0 || ttl < n.shortest {
		n.shortest = ttl
	}
	n.waiting.set(e, e.due.Add(Leeway(ttl)))
}

// Remove ends the extensions of leases. It waits for those that are under way until ctx has ended
// and grace is over. After that there is none, except what may come of a batch that got no
// answer and was given up.
func (r *Renewer) Remove(ctx context.Context, grace time.Duration, leases ...Renewable) {
	var underWay []<-chan struct{}
	for _, m := range leases {
		if over := r.Forget(m); over != nil {
			underWay = append(underWay, over)
		}
	}
	for _, over := range underWay {
		select {
		case <-over:
			continue
		case <-ctx.Done():
		}
		if grace == 0 {
			return
		}
		select {
		case <-over:
		case <-time.After(grace):
		}
	}
}

// Forget is Remove of one without the wait. It returns a channel that is closed when the extension
// that is under way is over, or nil if there is none.
func (r *Renewer) Forget(m Renewable) (over <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entries[m]; e != nil {
		if e.batch != nil {
			over = e.batch.over
		}
		r.drop(e)
	}
	return over
}

// drop forgets a lease.
func (r *Renewer) drop(e *entry) {
	e.node.waiting.remove(e)
	e.batch = nil
	delete(r.entries, e.lease)
	r.entries = shrink.Map(r.entries, &r.peak)
}

// Close ends all extensions, except those under way, and the loop. It does not wait, and nor does
// who waits for what is under way in Remove: no caller is left to give that up.
func (r *Renewer) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, e := range r.entries {
		e.index, e.batch = 0, nil
	}
	for _, n := range r.nodes {
		n.waiting = nil
		for b := range n.batches {
			n.end(b)
		}
	}
	r.entries = map[Renewable]*entry{}
	r.loop.Wake()
}

// turn is one turn of the loop: it sends a batch to each server that has something due.
func (r *Renewer) turn() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	next := now.Add(time.Hour)
	for id, n := range r.nodes {
		for under := range n.batches {
			if !now.Before(under.giveUp) { // it has had no answer in time
				n.end(under)
			}
		}
		for at, ok := n.nextDue(now); ok; at, ok = n.nextDue(now) {
			if at.After(now) {
				next = backoff.Sooner(next, at)
				break
			}
			if b := r.beginBatch(n, now); b != nil {
				// It ends with the answer, or when go-redis gives up. Remove waits for it until the
				// batch is given up, and the executor's Close does.
				r.executor.Go(func() { r.send(b) })
			}
		}
		for under := range n.batches {
			next = backoff.Sooner(next, under.giveUp)
		}
		if len(n.batches) == 0 && len(n.waiting) == 0 {
			delete(r.nodes, id)
		}
	}
	if len(r.nodes) == 0 { // no lease is left, and no batch under way
		r.nextDue = time.Time{}
		return background.Idle
	}
	r.nextDue = next
	return max(next.Sub(now), 0)
}

// nextDue returns when a batch is to be sent to the server, and whether one is at all. The lease
// that must be extended first says so: others may be due before it, and can wait as long.
func (n *node) nextDue(now time.Time) (at time.Time, ok bool) {
	at, ok = n.waiting.next()
	switch {
	case !ok:
	case len(n.batches) == 0:
		at = n.waiting[0].due
	case len(n.batches) >= maxFresh:
		at = backoff.Later(at, n.staleAt(now))
	}
	return at, ok
}

// staleAt returns when fewer than maxFresh batches will be fresh. One is fresh for a tenth of the
// shortest TTL; an older one may have met a connection that hangs, and no lease waits for it.
func (n *node) staleAt(now time.Time) time.Time {
	fresh, first := 0, now
	for b := range n.batches {
		if until := b.sent.Add(Leeway(n.shortest)); until.After(now) {
			if fresh++; fresh == 1 || until.Before(first) {
				first = until
			}
		}
	}
	if fresh < maxFresh {
		return now
	}
	return first
}

// beginBatch makes a batch of what is due on a server, or will be soon. It drops those for which
// nothing can be done any more, and returns nil if there are no others.
func (r *Renewer) beginBatch(n *node, now time.Time) *batch {
	b := &batch{node: n, sent: now, over: make(chan struct{})}
	budget := time.Hour
	for len(n.waiting) > 0 && len(b.members) < maxBatch {
		e := n.waiting[0]
		if e.due.Sub(now) > Leeway(e.lease.TTL()) {
			break
		}
		if !e.lease.Renewable() {
			r.drop(e)
			continue
		}
		n.waiting.remove(e)
		e.batch = b
		b.members = append(b.members, e)
		budget = min(budget, Budget(e.lease.Deadline().Sub(now)))
	}
	if len(b.members) == 0 {
		return nil
	}
	b.giveUp = now.Add(budget)
	n.batches[b] = true
	return b
}

// end ends a batch: its leases may be in another one. They are tried again soon, unless
// their results say otherwise.
func (n *node) end(b *batch) {
	if !n.batches[b] {
		return // given up before
	}
	now := time.Now()
	delete(n.batches, b)
	close(b.over)
	for _, e := range b.members {
		if e.batch == b {
			e.batch, e.due = nil, now.Add(RetryAfter(e.lease.TTL()))
			n.wait(e)
		}
	}
}

// send sends a batch, and dates each lease's next extension by what came of it. It runs
// in a goroutine of its own.
func (r *Renewer) send(b *batch) {
	wanted := b.members
	if !time.Now().Before(b.giveUp) { // on a busy machine this may run long after the batch was begun
		wanted = nil
	}
	var members []*entry
	var requests []redisexec.Request
	for _, e := range wanted {
		if request, held := e.lease.Extension(); held {
			members, requests = append(members, e), append(requests, request)
		}
	}
	var results []redisexec.Result
	if len(requests) > 0 {
		results = r.executor.Pipeline(context.Background(), requests)
	}
	extended, ids := make([]bool, len(requests)), make([]any, len(requests))
	for i, e := range members {
		ids[i] = r.nodeOf(e.lease) // it may have moved
		extended[i] = e.lease.HandleExtension(b.sent, results[i])
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	b.node.end(b)
	for i, e := range members {
		if r.entries[e.lease] != e {
			continue
		}
		if next := b.sent.Add(RenewAfter(e.lease.TTL())); extended[i] && e.due.Before(next) {
			e.due = next
		}
		r.wait(e, ids[i])
	}
	r.loop.Wake()
}
