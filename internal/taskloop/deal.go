package taskloop

import (
	"container/heap"
	"math"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
)

// A loop that works on several queues deals its runners to them by weighted fair queueing: each
// queue is charged for the time that its handlers take, divided by its weight, and the one that was
// charged least has the next claim. A queue that had no work begins where the others are, so that
// it gains nothing by the time without work, and they lose nothing by it. (Start-time fair queueing:
// Goyal, Vin and Cheng, 1996.)

const (
	// leastCost is what a task costs at least. Shorter handlers cannot be told apart: what is
	// measured of them is the machine.
	leastCost = time.Millisecond
	// quantum is for how much handler time a claim is at least, if there are runners for it: many
	// tasks where handlers are quick, since to claim a few costs as much as to claim many.
	quantum = 50 * time.Millisecond
)

// account is what a queue is charged for. The first two sums, in nanoseconds, grow for as long as the
// loop runs, by up to the queue's weight in each: more than a whole number holds.
type account struct {
	charged  float64       // for the tasks that it was dealt
	taken    float64       // of that, what handlers have taken that have returned
	cost     time.Duration // what a task has cost lately; 0 if that is not known
	running  int           // handlers that keep a runner,
	began    time.Duration // the sum of when they began, since the loop did,
	expected time.Duration // and of what was charged for them
	advance  time.Duration // what was charged beyond that, because they take longer
}

// charge charges for tasks, or gives back what was charged.
func (a *account) charge(d time.Duration) { a.charged += float64(d) }

// each is what a task is charged with when it is claimed: what one has cost lately, or more if
// those that run have taken longer already.
func (a *account) each(elapsed time.Duration) time.Duration {
	each := max(a.cost, leastCost)
	if a.running > 0 {
		each = max(each, (time.Duration(a.running)*elapsed-a.began)/time.Duration(a.running)) // the difference is small, as the sums are not
	}
	return each
}

// used is what its handlers have taken so far, of what it is charged for or will be.
func (a *account) used(elapsed time.Duration) float64 {
	return a.taken + float64(time.Duration(a.running)*elapsed-a.began)
}

// beyond is what its handlers have taken so far that was not charged yet.
func (a *account) beyond(elapsed time.Duration) time.Duration {
	return max(time.Duration(a.running)*elapsed-a.began-a.expected-a.advance, 0)
}

// countRunning counts a handler that keeps a runner from now on, for n of 1, or does not any more,
// for -1.
func (l *loop) countRunning(d *delivery, n int) {
	a := &d.queue.account
	a.running += n
	a.began += time.Duration(n) * d.began.Sub(l.opened)
	a.expected += time.Duration(n) * d.charged
}

// settleCost charges for a task what its handler has taken, 0 if it was not called, in place of
// what was charged when it was claimed.
func (l *loop) settleCost(d *delivery, took time.Duration) {
	a := &d.queue.account
	cost := time.Duration(0)
	if took > 0 {
		cost = max(took, leastCost)
		if a.cost == 0 {
			a.cost = cost
		}
		a.cost += (min(cost, 2*a.cost) - a.cost) / 8
	}
	a.taken += float64(cost)
	owes := cost - d.charged
	d.charged = 0
	if owes > 0 {
		paid := min(owes, a.advance)
		a.advance -= paid
		owes -= paid
	}
	if a.running == 0 {
		owes -= a.advance
		a.advance = 0
	}
	l.giveBackCost(d.queue, -owes)
}

// turnOf is when the queue has its next turn: what it was charged, and what its handlers have taken
// beyond that so far, by its weight.
func (l *loop) turnOf(q *queue, now time.Time) float64 {
	return (q.account.charged + float64(q.account.beyond(now.Sub(l.opened)))) / float64(q.Weight)
}

// turns are the queues of a client from which a claim may bring something: a heap, the one whose
// turn is next first.
type turns []*queue

func (t turns) Len() int           { return len(t) }
func (t turns) Less(i, j int) bool { return t[i].turn < t[j].turn }
func (t turns) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].place, t[j].place = i, j
}

func (t *turns) Push(x any) {
	q, _ := x.(*queue)
	q.place = len(*t)
	*t = append(*t, q)
}

func (t *turns) Pop() any {
	last := len(*t) - 1
	q := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	q.place = -1
	return q
}

// takesTurns reports whether a queue may have turns: a claim may bring something, its server
// answers, and it has not as many runners as it may have.
func (l *loop) takesTurns(q *queue) bool {
	return q.demand.claimWanted && !l.isShut(q) && q.overdue == 0 && q.held() < l.most(q)
}

// wants adds a queue to those that have turns. One that had no work has the next turn, whatever it
// was charged before. One whose server did not answer begins where the others are. One that had as
// many runners as it may begins with the turn of the last claim at least.
func (l *loop) wants(q *queue) {
	if q.place >= 0 {
		return
	}
	now, from := time.Now(), l.dealt
	if q.hadNone = q.hadNone && q.held() == 0; q.hadNone || q.wasAway {
		from = l.whereOthersAre(now)
	}
	if q.hadNone && len(q.client.turns) > 0 {
		from = min(from, math.Nextafter(q.client.turns[0].turn, math.Inf(-1)))
	}
	if q.turn = l.turnOf(q, now); q.hadNone || q.turn < from {
		raised := (from - q.turn) * float64(q.Weight)
		q.account.charged += raised
		q.account.taken += raised
		q.turn = from
	}
	q.hadNone, q.wasAway = false, false
	heap.Push(&q.client.turns, q)
	l.wanting++
	l.weights += q.Weight
}

// whereOthersAre is the turn that is next. If no queue has turns, one may have all runners: then it
// is by what the handlers of the one that was dealt tasks last have taken so far.
func (l *loop) whereOthersAre(now time.Time) float64 {
	var next *queue
	for _, c := range l.clients {
		if len(c.turns) > 0 && (next == nil || c.turns[0].turn < next.turn) {
			next = c.turns[0]
		}
	}
	switch {
	case next != nil:
		return max(l.dealt, l.turnOf(next, now))
	case l.last != nil:
		return max(l.dealt, l.last.account.used(now.Sub(l.opened))/float64(l.last.Weight))
	}
	return 0
}

// wantsNoMore takes a queue out of those that have turns.
func (l *loop) wantsNoMore(q *queue) {
	heap.Remove(&q.client.turns, q.place)
	l.wanting--
	l.weights -= q.Weight
}

// deal charges a queue for a claim that is its turn now.
func (l *loop) deal(x *exchange) {
	q := x.queue
	if x.claim == 0 {
		return
	}
	if q.place >= 0 {
		l.dealt, l.last = max(l.dealt, q.turn), q
	}
	a, elapsed := &q.account, x.sent.Sub(l.opened)
	beyond := a.beyond(elapsed)
	a.advance += beyond
	x.each = a.each(elapsed)
	a.charge(beyond + time.Duration(x.claim)*x.each)
}

// giveBackCost gives back what a queue was charged for tasks that it has not been dealt.
func (l *loop) giveBackCost(q *queue, d time.Duration) {
	q.account.charge(-d)
	if d > 0 && q.place >= 0 {
		q.turn = l.turnOf(q, time.Now())
		heap.Fix(&q.client.turns, q.place)
	}
}

// nextInTurn returns the queue whose turn it is, of those that may be asked for tasks now.
func (l *loop) nextInTurn(now time.Time) (next *queue) {
	if l.isStopping() || l.free() == 0 {
		return nil
	}
	for _, c := range l.clients {
		if q := l.firstOf(c, now); q != nil && (next == nil || q.turn < next.turn) {
			next = q
		}
	}
	return next
}

// firstOf is nextInTurn of one client's.
func (l *loop) firstOf(c *client, now time.Time) (first *queue) {
	var aside []*queue // they cannot be asked now, and keep their turns
	for isHeld := false; first == nil && !isHeld && len(c.turns) > 0; {
		q := c.turns[0]
		switch turn := l.turnOf(q, now); {
		case !l.takesTurns(q):
			l.consider(q)
			continue
		case turn > q.turn: // its handlers take longer than was charged
			q.turn = turn
			heap.Fix(&c.turns, 0)
			continue
		case now.Before(q.health.retryAt):
			l.nextTry = backoff.Sooner(l.nextTry, q.health.retryAt)
		case q.account.cost == 0 && l.wanting > 1 && q.held() >= l.part(q): // its handlers may take very long
		case *q.beside() >= l.slots() || !l.mayExchange(q, now) || l.claimable(q, now) == 0:
			// Its exchange is likely to be answered soon: until then none has its turn. A far
			// server keeps no other one waiting.
			if until := q.asked.Add(l.patienceWith(q)); q.underWay > 0 && now.Before(until) {
				isHeld = true
				l.nextTry = backoff.Sooner(l.nextTry, until)
			}
		default:
			first = q
			continue
		}
		heap.Pop(&c.turns)
		aside = append(aside, q)
	}
	for _, q := range aside {
		heap.Push(&c.turns, q)
	}
	return first
}

// isShut reports whether a queue's server is out, so that a probe asks it and no claim that keeps
// runners.
func (l *loop) isShut(q *queue) bool { return len(l.queues) > 1 && q.health.isOut() }

// part is how many runners are a queue's by its weight, beside the queues that want some too.
func (l *loop) part(q *queue) int { return (l.Concurrency*q.Weight + l.weights - 1) / l.weights }

// share is for how many tasks a claim of a queue may be: for those that its part of the runners
// lacks, beside the queues that want some too; for a quantum, if it is known how long its handlers
// take; and for one at least.
func (l *loop) share(q *queue) int {
	if l.wanting == 0 || l.wanting == 1 && q.place >= 0 {
		return l.Concurrency
	}
	n := max(l.part(q)-q.held(), 1)
	if q.account.cost > 0 {
		n = max(n, int(quantum/q.account.each(time.Since(l.opened))))
	}
	return n
}
