package sluice

import (
	"context"
	"sync"
	"time"
)

// renewer extends the locks of one Locker that ask for it, each at a third of its
// TTL, for as long as they are held: in rounds, each one pipeline for whatever is
// due, or will be within a tenth of its TTL. On a Cluster each server has rounds of its
// own, so that one that hangs costs its own locks only.
//
// A round is given half the time that the most pressing of its locks has left, so
// that there is always another one; what its pipeline answers later still counts.
// While a server does not answer, its other locks wait for a tenth of their TTL before
// they go in a round of their own. An error is tried again until the lock's deadline;
// only the server's word that the lock is not ours ends it before.
//
// One goroutine does it for all the locks, and one for each pipeline under way. It
// is started by add and ends when no lock is left, or in close.
type renewer struct {
	locker *Locker

	mu      sync.Mutex // guards what follows, every Lock's round, and the rounds
	due     map[*Lock]time.Time
	rounds  map[*round]bool // under way, and not given up
	wake    time.Time       // when the goroutine looks next
	running bool
	closed  bool
	kick    chan struct{} // cap 1
}

// round is one pipeline.
type round struct {
	node   any // where all of its locks are
	locks  []*Lock
	sent   time.Time
	giveUp time.Time
	over   chan struct{} // closed when its replies have been dealt with, or it is given up
}

const (
	// retryRenewal is the part of its TTL after which a renewal that failed is
	// tried again.
	retryRenewal = 20
	// patienceOfRenewal is the part of its TTL for which a lock waits for a round
	// that is under way without it.
	patienceOfRenewal = 10
	// leastBudget is what a round is given at the least.
	leastBudget = 20 * time.Millisecond
)

func newRenewer(l *Locker) *renewer {
	return &renewer{
		locker: l, due: map[*Lock]time.Time{}, rounds: map[*round]bool{}, kick: make(chan struct{}, 1),
	}
}

// add has k renewed until remove.
func (r *renewer) add(k *Lock) {
	// Sooner, if the acquisition took so long that not much of the TTL is left.
	now := time.Now()
	at := earlier(now.Add(k.ttl/3), now.Add(k.Deadline().Sub(now)/2))
	node := r.locker.door.nodeOf(k.at.keys[0])
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.due[k], k.node = at, node
	if !r.running {
		r.running = true
		r.locker.cleaner.start(r.work)
	} else if at.Before(r.wake) {
		signal(r.kick)
	}
}

// remove ends k's renewal. One that is under way is waited for, until ctx has
// ended and the grace is over: after that there is none, but for what may come of a
// round that got no answer and was given up.
func (r *renewer) remove(ctx context.Context, k *Lock, grace time.Duration) {
	r.mu.Lock()
	delete(r.due, k)
	under := k.round
	r.mu.Unlock()
	if under == nil {
		return
	}
	select {
	case <-under.over:
		return
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-under.over:
	case <-timer.C:
	}
}

func (r *renewer) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	clear(r.due)
	signal(r.kick)
}

func (r *renewer) work() {
	for {
		next, pause := r.next()
		switch {
		case pause < 0:
			return
		case next != nil:
			r.locker.cleaner.start(func() { r.renew(next) })
		default:
			timer := time.NewTimer(pause)
			select {
			case <-r.kick:
			case <-timer.C:
			}
			timer.Stop()
		}
	}
}

// next returns a round to be sent now, or how long there is nothing to do. A
// negative time means never: the goroutine has ended.
func (r *renewer) next() (next *round, pause time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.wake = now.Add(time.Hour)
	asked := map[any]bool{} // servers with a round under way
	for under := range r.rounds {
		if now.Before(under.giveUp) {
			r.wake = earlier(r.wake, under.giveUp)
			asked[under.node] = true
		} else {
			r.end(under)
		}
	}
	var pressing *Lock
	for k, at := range r.due {
		if asked[k.node] {
			at = at.Add(k.ttl / patienceOfRenewal)
		}
		switch {
		case !k.renewable():
			delete(r.due, k)
		case k.round == nil:
			if !at.After(now) {
				pressing = k
			}
			r.wake = earlier(r.wake, at)
		}
	}
	switch {
	case len(r.due) == 0 && (r.closed || len(r.rounds) == 0):
		r.running = false
		return nil, -1
	case pressing == nil:
		return nil, r.wake.Sub(now)
	}
	return r.begin(now, pressing.node), 0
}

// begin makes a round of what is due on a server.
func (r *renewer) begin(now time.Time, node any) *round {
	next := &round{node: node, sent: now, over: make(chan struct{})}
	budget := time.Hour
	for k, at := range r.due {
		if len(next.locks) < 4*chunk && k.round == nil && k.node == node && at.Sub(now) <= k.ttl/10 {
			k.round = next
			next.locks = append(next.locks, k)
			budget = min(budget, k.Deadline().Sub(now)/2)
		}
	}
	next.giveUp = now.Add(max(budget, leastBudget))
	r.rounds[next] = true
	return next
}

// end ends a round: its locks may be in another one. Those that had no answer
// are tried again soon.
func (r *renewer) end(under *round) {
	if !r.rounds[under] {
		return // given up before
	}
	delete(r.rounds, under)
	close(under.over)
	for _, k := range under.locks {
		k.round = nil
		if _, still := r.due[k]; still {
			r.due[k] = time.Now().Add(max(k.ttl/retryRenewal, time.Millisecond))
		}
	}
}

// renew sends a round, and dates each lock's next renewal by what came of it.
func (r *renewer) renew(this *round) {
	calls := make([]call, len(this.locks))
	for i, k := range this.locks {
		calls[i] = k.extendCall(k.ttl)
	}
	results := r.locker.door.sendAll(context.Background(), calls)
	renewed, nodes := make([]bool, len(calls)), make([]any, len(calls))
	for i, k := range this.locks {
		nodes[i] = r.locker.door.nodeOf(k.at.keys[0]) // it may have moved
		held, err := results[i].flag()
		switch {
		case err != nil: // to be tried again
		case !held:
			k.lose()
		case k.postpone(this.sent, k.ttl):
			renewed[i] = true
		default:
			k.tooLate()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(this)
	for i, k := range this.locks {
		k.node = nodes[i]
		next := this.sent.Add(k.ttl / 3)
		if at, still := r.due[k]; still && renewed[i] && at.Before(next) {
			r.due[k] = next
		}
	}
	signal(r.kick)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// flag is a result that is 1 for yes.
func (r result) flag() (bool, error) {
	if r.err != nil {
		return false, r.err
	}
	return yes(r.reply)
}
