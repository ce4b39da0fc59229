package taskloop

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// leastPatience and mostPatience bound for how long an exchange holds back those of other
	// queues, so that groups form meanwhile. One that takes longer has a server that hangs.
	leastPatience = time.Millisecond
	mostPatience  = 20 * time.Millisecond
	// minLapse is how long an exchange keeps runners at least for what it may bring, while others
	// need them.
	minLapse = 20 * time.Millisecond
	// runnersPerSlot is for how many runners there is another exchange at a time, beside two.
	runnersPerSlot = 256
)

// The lists of queues.
const (
	reporters = iota // those with dispositions to be sent, in the order of asking
	shut             // a claim may bring something, and their servers do not answer: see probe
	idle             // nothing is due, and they are not watched
	extenders        // those with leases that are to be extended
	lists
)

// list adds a queue to a list, if it is not in it.
func (l *loop) list(q *queue, in int) {
	if !q.listed[in] {
		q.listed[in] = true
		l.lists[in] = append(l.lists[in], q)
	}
}

// drop takes the i-th queue off a list, and keeps the order of the others.
func (l *loop) drop(in, i int) {
	l.lists[in][i].listed[in] = false
	l.lists[in] = slices.Delete(l.lists[in], i, i+1)
}

// consider adds a queue to the lists where it belongs. Those where it does not belong any more
// drop it when they are looked through.
func (l *loop) consider(q *queue) {
	if len(q.pending) > 0 {
		l.list(q, reporters)
	}
	if q.place >= 0 && !l.takesTurns(q) {
		l.wantsNoMore(q)
	}
	switch {
	case l.isStopping():
	case l.takesTurns(q):
		l.wants(q)
	case q.demand.claimWanted && l.isShut(q):
		q.wasAway = true
		l.list(q, shut)
	case q.demand.claimWanted: // until an exchange is answered, or a handler returns
		q.wasAway = q.wasAway || q.overdue > 0
	case q.underWay == 0 && q.waiting == nil:
		l.list(q, idle)
	}
}

// open makes what the loop knows of its queues. All are asked first, in any order.
func (l *loop) open() {
	clients := map[any]*client{}
	for _, config := range l.Queues {
		c := clients[config.Client]
		if c == nil {
			c = new(client)
			clients[config.Client], l.clients = c, append(l.clients, c)
		}
		c.queues++
		c.unknown++
		q := &queue{Queue: config, client: c, health: health{log: config.Log}, place: -1}
		q.demand.noteDue()
		l.queues = append(l.queues, q)
	}
	l.noteMost()
	for _, i := range rand.Perm(len(l.queues)) {
		l.consider(l.queues[i])
	}
}

// addPending has a delivery's disposition sent.
func (l *loop) addPending(d *delivery) {
	q := d.queue
	q.pending = append(q.pending, d)
	l.pending++
	l.list(q, reporters)
	if q.demand.limited {
		q.demand.noteDue()
		l.consider(q)
	}
}

// setPending replaces what is pending by some of it.
func (l *loop) setPending(q *queue, left []*delivery) {
	l.pending -= len(q.pending) - len(left)
	clear(q.pending[len(left):])
	q.pending = left
}

// waiting is a Source.Wait that is under way.
type waiting struct {
	queue *queue
	since time.Time
	stop  context.CancelFunc
	ended bool // the loop has stopped it: what it returns is of no interest
	err   error
}

// wait has those queues watched in which nothing is due, while a runner is free. While all are
// busy, others are told of tasks. With several queues they are always watched: one that has a task
// is to have the next runner.
func (l *loop) wait() {
	if len(l.queues) == 1 && l.occupied() >= l.Concurrency {
		l.endWaits()
	}
	for i := 0; i < len(l.lists[idle]); {
		q := l.lists[idle][i]
		if q.underWay == 0 && q.waiting == nil && !q.demand.claimWanted && !l.isStopping() {
			if len(l.queues) == 1 && l.freeFor(q) == 0 {
				i++
				continue
			}
			l.watch(q)
		}
		l.drop(idle, i)
	}
}

// watch has a queue watched. The goroutine ends when Source.Wait returns: stop and close end that,
// and close waits for it.
func (l *loop) watch(q *queue) {
	ctx, stop := context.WithCancel(context.Background())
	w := &waiting{queue: q, since: time.Now(), stop: stop}
	q.waiting = w
	l.waits++
	go func() {
		defer stop()
		w.err = q.Source.Wait(ctx)
		l.waited <- w
	}()
}

// woken notes that something may be due or, after an error, that a claim has to find out.
func (l *loop) woken(w *waiting) {
	q := w.queue
	q.waiting = nil
	l.waits--
	if !w.ended || l.isStopping() {
		q.demand.noteDue()
	}
	q.hadNone = true
	switch {
	case w.ended || l.isStopping():
	case w.err != nil:
		if time.Since(w.since) > retryLast {
			q.health.reset(watching) // it has worked in between
		}
		q.health.noteFailure(watching, w.err)
	default: // that a task is due need not come from the server: what claims it shows whether there is one
		q.health.reset(watching)
	}
	l.consider(q)
}
