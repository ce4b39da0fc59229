package sluice

import (
	"context"
	"sync"
	"time"
)

// renewer extends the locks of one Locker that ask for it, each at a third of its
// TTL, for as long as they are held. One goroutine does it for all, with one
// pipeline at a time for whatever is due, or will be within a tenth of its TTL.
//
// An attempt is given half the time that the most pressing lock has left, so that
// there is always another one. An error is tried again until the lock's deadline;
// only the server's word that the lock is not ours ends it before.
//
// The goroutine is started by add and ends when no lock is left, or in close.
type renewer struct {
	locker *Locker

	mu      sync.Mutex // guards what follows, and every Lock's round
	due     map[*Lock]time.Time
	wake    time.Time // when the goroutine looks next
	running bool
	closed  bool
	kick    chan struct{} // cap 1
}

// round is one pipeline.
type round struct {
	over chan struct{} // closed when its replies have been dealt with, or given up
}

const (
	// retryRenewal is the part of its TTL after which a renewal that failed is
	// tried again.
	retryRenewal = 20
	// leastBudget is what an attempt is given at the least.
	leastBudget = 20 * time.Millisecond
)

func newRenewer(l *Locker) *renewer {
	return &renewer{locker: l, due: map[*Lock]time.Time{}, kick: make(chan struct{}, 1)}
}

// add has k renewed until remove.
func (r *renewer) add(k *Lock) {
	at := time.Now().Add(k.ttl / 3)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.due[k] = at
	if !r.running {
		r.running = true
		r.locker.cleaner.start(r.work)
	} else if at.Before(r.wake) {
		signal(r.kick)
	}
}

// remove ends k's renewal. One that is under way is waited for, until ctx has
// ended and the grace is over: after that there is none.
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
		locks, this, pause := r.next()
		switch {
		case pause < 0:
			return
		case len(locks) > 0:
			r.renew(locks, this)
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

// next returns what is to be renewed now, or how long there is nothing to do. A
// negative time means never: the goroutine has ended.
func (r *renewer) next() (locks []*Lock, this *round, pause time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	earliest := now.Add(time.Hour)
	pressing := false
	for k, at := range r.due {
		if !k.renewable() {
			delete(r.due, k)
			continue
		}
		pressing = pressing || !at.After(now)
		if at.Before(earliest) {
			earliest = at
		}
	}
	if len(r.due) == 0 {
		r.running = false
		return nil, nil, -1
	}
	r.wake = earliest
	if !pressing {
		return nil, nil, earliest.Sub(now)
	}
	this = &round{over: make(chan struct{})}
	for k, at := range r.due {
		if len(locks) < 2*chunk && at.Sub(now) <= k.ttl/10 {
			k.round = this
			locks = append(locks, k)
		}
	}
	return locks, this, 0
}

// renew sends one pipeline, and dates each lock's next renewal by what came of it.
func (r *renewer) renew(locks []*Lock, this *round) {
	calls := make([]call, len(locks))
	budget := time.Hour
	for i, k := range locks {
		calls[i] = k.extendCall(k.ttl)
		budget = min(budget, time.Until(k.Deadline())/2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), max(budget, leastBudget))
	sent := time.Now()
	results := r.locker.door.pipeline(ctx, calls)
	cancel()
	next := make([]time.Time, len(locks)) // zero: never
	for i, k := range locks {
		held, err := results[i].flag()
		switch {
		case err != nil:
			next[i] = time.Now().Add(max(k.ttl/retryRenewal, time.Millisecond))
		case !held:
			k.lose()
		case k.postpone(sent, k.ttl):
			next[i] = sent.Add(k.ttl / 3)
		default:
			k.tooLate()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, k := range locks {
		k.round = nil
		if _, still := r.due[k]; !still {
			continue // released meanwhile
		}
		if next[i].IsZero() {
			delete(r.due, k)
		} else {
			r.due[k] = next[i]
		}
	}
	close(this.over)
}

// flag is a result that is 1 for yes.
func (r result) flag() (bool, error) {
	if r.err != nil {
		return false, r.err
	}
	return yes(r.reply)
}
