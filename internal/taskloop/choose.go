package taskloop

import (
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/store"
)

// choose returns the queue with which the next exchange is, and for how many tasks its claim. nil
// if none may go out now.
//
// Claims go to the queue whose turn it is (see deal.go). Tasks are finished by the script that
// claims, so that the exchange with a queue that has dispositions to be sent and whose turn it is
// has both.
func (l *loop) choose(now time.Time) (q *queue, claim int) {
	l.nextTry = time.Time{}
	l.holdBack(now)
	if !l.mayGo() {
		return nil, 0
	}
	if q := l.probe(now); q != nil {
		return q, 1
	}
	r, o := l.reporter(now), l.nextInTurn(now)
	if !l.isMuch(r, o) {
		r, o = r.unlessBeside(), o.unlessBeside()
	}
	switch {
	case r == nil:
		if o == nil {
			return nil, 0
		}
		return o, l.claimable(o, now)
	case o == r || o == nil && len(l.queues) == 1:
		return r, l.claimable(r, now)
	case o == nil:
		return r, 0
	}
	l.claimNext = !l.claimNext
	if l.claimNext {
		return o, l.claimable(o, now)
	}
	return r, 0
}

// slots is how many exchanges go out at a time by a client, of all its queues. More would only make
// the groups smaller. One queue has its own rule, see mayExchange.
func (l *loop) slots() int { return 2 + l.Concurrency/runnersPerSlot }

// holdBack counts the exchanges under way that hold back others of their client, and notes until
// when. Those with queues that have never answered hold back others of which that is true. Those of
// one queue alone do not: see mayExchange.
func (l *loop) holdBack(now time.Time) {
	for _, c := range l.clients {
		c.beside = [2]int{}
	}
	if len(l.queues) == 1 {
		return
	}
	n := 0
	for i := len(l.exchanges) - 1; i >= 0; i-- {
		x := l.exchanges[i]
		if until := x.sent.Add(l.patienceWith(x.queue)); now.Before(until) && !x.queue.health.isOut() {
			n++
			*x.queue.beside()++
			l.nextTry = backoff.Sooner(l.nextTry, until)
		} else if now.Sub(x.sent) >= mostPatience {
			break
		}
	}
	if n > 0 && l.pending+l.wanting+len(l.lists[shut]) == 0 {
		l.nextTry = time.Time{} // there is nothing to be sent then
	}
}

// mayGo reports whether an exchange of any queue may go out, as far as is known without looking at
// each.
func (l *loop) mayGo() bool {
	enough := max(l.Concurrency/4, 1)
	isMuch := l.pending >= enough || l.free() >= enough
	return len(l.queues) == 1 || slices.ContainsFunc(l.clients, func(c *client) bool {
		return c.beside[0] == 0 || isMuch && c.beside[0] < l.slots() || c.unknown > 0 && c.beside[1] == 0
	})
}

// beside is how many exchanges are under way that hold back one with this queue.
func (q *queue) beside() *int {
	if q.usual == 0 && q.client.queues > 1 {
		return &q.client.beside[1]
	}
	return &q.client.beside[0]
}

// unlessBeside returns the queue if no exchange holds back one with it.
func (q *queue) unlessBeside() *queue {
	if q == nil || *q.beside() > 0 {
		return nil
	}
	return q
}

// isMuch reports whether there is enough to do for an exchange beside another one.
func (l *loop) isMuch(r, o *queue) bool {
	enough := max(l.Concurrency/4, 1)
	return r != nil && l.pending >= enough || o != nil && l.freeFor(o) >= o.demand.worthAsking(enough)
}

// reporter returns the queue that has dispositions to be sent and may be sent them; the one that
// is waiting for longest.
func (l *loop) reporter(now time.Time) *queue {
	for i := 0; i < len(l.lists[reporters]); {
		q := l.lists[reporters][i]
		switch {
		case len(q.pending) == 0:
			l.drop(reporters, i)
			continue
		case now.Before(q.health.retryAt):
			l.nextTry = backoff.Sooner(l.nextTry, q.health.retryAt)
		case *q.beside() < l.slots() && l.mayExchange(q, now):
			return q
		}
		i++
	}
	return nil
}

// probe returns a queue whose outage may be over: it is asked for a task, whether a runner is free
// or not. One at a time for a client.
func (l *loop) probe(now time.Time) *queue {
	if len(l.queues) == 1 || l.isStopping() {
		return nil
	}
	for i := 0; i < len(l.lists[shut]); i++ {
		switch q := l.lists[shut][i]; {
		case !q.demand.claimWanted || !q.health.isOut():
			l.drop(shut, i)
			l.consider(q)
			i--
		case q.underWay > 0 || q.client.probes > 0:
		case now.Before(q.health.retryAt):
			l.nextTry = backoff.Sooner(l.nextTry, q.health.retryAt)
		default:
			return q
		}
	}
	return nil
}

// mayExchange reports whether an exchange with a queue may go out. One may at any time. With
// many runners another one may be under way, if there is much to do: Redis deals with one half
// of the tasks while the handlers have the other. With few runners a second exchange would
// only make both groups smaller. In an outage there is one at a time, so that each failure
// is waited out.
func (l *loop) mayExchange(q *queue, now time.Time) bool {
	switch {
	case q.underWay == 0:
		return true
	case q.underWay > 1 || q.overdue > 0 || l.most(q) < halvesFrom || q.health.isOut():
		return false
	}
	enough := l.most(q) / 4
	return len(q.pending) >= enough || q.demand.backlogLikely && l.claimable(q, now) >= q.demand.worthAsking(enough)
}

// claimable is how many tasks the next claim of a queue is for: the free runners, but with many
// not more than half of them, so that two exchanges can take turns, nor more than its share. One of
// several queues is asked for about as many as it had the last time, unless it had more, and for
// few in an outage: runners are not kept for tasks that are not there.
func (l *loop) claimable(q *queue, now time.Time) int {
	if l.isStopping() || l.isShut(q) { // see probe
		return 0
	}
	most := l.most(q)
	few := max(1, most/16)
	if most >= halvesFrom {
		most -= most / 2
	}
	most = min(most, l.share(q))
	switch {
	case len(l.queues) == 1:
	case q.health.isOut():
		most = few
	case !q.demand.backlogLikely:
		most = min(most, 2*q.brought+few)
	}
	return q.demand.size(min(l.freeFor(q), most, store.MaxGroup), now)
}

// free is how many runners have nothing to do, and are not kept for what a claim may bring.
func (l *loop) free() int { return max(l.Concurrency-l.occupied()-l.reserved, 0) }

// freeOf is how many of them a queue may have.
func (l *loop) freeOf(q *queue) int { return max(min(l.free(), l.most(q)-q.held()), 0) }

// freeFor is how many tasks of a queue may be claimed. While it fails, dispositions that it has
// not taken keep runners from its own tasks, so that there is a bound to their number.
func (l *loop) freeFor(q *queue) int {
	n := l.freeOf(q)
	if q.health.isOut() {
		n -= len(q.pending) + q.sending
	}
	return max(n, 0)
}
