package taskloop

import (
	"slices"
	"time"
)

// choose returns the shard with which the next exchange is, and for how many tasks its claim.
// nil if none may go out now.
//
// Claims go to the queue whose turn it is (see isBefore), and there to the shard whose head is oldest, as far as is known: its last reply says so. But
// tasks are finished by the script that claims, so a claim goes along with dispositions if the
// head of their shard is not much younger. And in each poll interval, each shard has a turn at
// which it counts as the oldest: what is known may be wrong, and one that is never asked would
// starve.
func (l *loop) choose(now time.Time) (f *feed, claim int) {
	l.nextTry = time.Time{}
	l.holdBack(now)
	if !l.mayGo() {
		return nil, 0
	}
	l.weigh()
	if f := l.probe(now); f != nil {
		return f, 1
	}
	r, o := l.reporter(now), l.oldest(now)
	if !l.isMuch(r, o) {
		r, o = r.unlessBeside(), o.unlessBeside()
	}
	switch {
	case r == nil:
		if o == nil {
			return nil, 0
		}
		return o, l.claimable(o, now)
	case o == nil || o == r || l.goesAlong(r, o, now):
		return r, l.claimable(r, now)
	}
	l.claimNext = !l.claimNext
	if l.claimNext {
		return o, l.claimable(o, now)
	}
	return r, 0
}

// slots is how many exchanges go out at a time by a client, of all shards. More would only make the groups
// smaller. One shard has its own rule, see mayExchange.
func (l *loop) slots() int { return 2 + l.Concurrency/runnersPerSlot }

// holdBack counts the exchanges under way that hold back others of their client, and notes until when. Those with shards that have never
// answered hold back others of which that is true. Those of one shard alone do not: see mayExchange.
func (l *loop) holdBack(now time.Time) {
	for _, c := range l.clients {
		c.beside = [2]int{}
	}
	if len(l.feeds) == 1 {
		return
	}
	n := 0
	for i := len(l.exchanges) - 1; i >= 0; i-- {
		x := l.exchanges[i]
		if until := x.sent.Add(l.patienceWith(x.feed)); now.Before(until) && !x.feed.health.isOut() {
			n++
			*x.feed.beside()++
			l.nextTry = sooner(l.nextTry, until)
		} else if now.Sub(x.sent) >= mostPatience {
			break
		}
	}
	if n > 0 && l.pending+len(l.lists[wanted]) == 0 {
		l.nextTry = time.Time{} // there is nothing to be sent then
	}
}

// mayGo reports whether an exchange of any of several queues may go out, as far as is known without looking at each.
func (l *loop) mayGo() bool {
	enough := max(l.Concurrency/4, 1)
	isMuch := l.pending >= enough || l.free() >= enough
	return len(l.queues) == 1 || slices.ContainsFunc(l.clients, func(c *client) bool {
		return c.beside[0] == 0 || isMuch && c.beside[0] < l.slots() || c.unknown > 0 && c.beside[1] == 0
	})
}

// beside is how many exchanges are under way that hold back one with this shard.
func (f *feed) beside() *int {
	if f.usual == 0 && f.queue.client.queues > 1 {
		return &f.queue.client.beside[1]
	}
	return &f.queue.client.beside[0]
}

// unlessBeside returns the shard if no exchange holds back one with it.
func (f *feed) unlessBeside() *feed {
	if f == nil || *f.beside() > 0 {
		return nil
	}
	return f
}

// isMuch reports whether there is enough to do for an exchange beside another one.
func (l *loop) isMuch(r, o *feed) bool {
	enough := max(l.Concurrency/4, 1)
	return r != nil && l.pending >= enough || o != nil && l.freeFor(o) >= o.demand.worthAsking(enough)
}

// reporter returns the shard that has dispositions to be sent and may be sent them; the one that
// is waiting for longest.
func (l *loop) reporter(now time.Time) *feed {
	for i := 0; i < len(l.lists[reporters]); {
		f := l.lists[reporters][i]
		switch {
		case len(f.pending) == 0:
			l.drop(reporters, i)
			continue
		case now.Before(f.health.retryAt):
			l.nextTry = sooner(l.nextTry, f.health.retryAt)
		case *f.beside() < l.slots() && l.mayExchange(f, now):
			return f
		}
		i++
	}
	return nil
}

// oldest returns the shard with the oldest head, of those that may be asked now.
func (l *loop) oldest(now time.Time) (oldest *feed) {
	if l.stopping != nil || l.free() == 0 {
		return nil
	}
	for i := 0; i < len(l.lists[wanted]); {
		f := l.lists[wanted][i]
		switch {
		case !f.demand.claimWanted:
			l.drop(wanted, i)
			continue
		case now.Before(f.health.retryAt):
			l.nextTry = sooner(l.nextTry, f.health.retryAt)
		case oldest != nil && !l.isBefore(f, oldest):
		case *f.beside() < l.slots() && l.claimable(f, now) > 0 && l.mayExchange(f, now):
			oldest = f
		}
		i++
	}
	return oldest
}

// isOlder reports whether the shard is to be asked before another one.
func (f *feed) isOlder(other *feed) bool {
	if f.overlooked != other.overlooked {
		return f.overlooked
	}
	return f.head.Before(other.head)
}

// goesAlong reports whether a claim goes along with the dispositions of r, though the head of
// another shard of the queue is older.
func (l *loop) goesAlong(r, oldest *feed, now time.Time) bool {
	if !r.demand.claimWanted || oldest.overlooked || r.queue != oldest.queue {
		return false
	}
	return r.head.Sub(oldest.head) <= max(minSlack, now.Sub(oldest.head)/8)
}

// mayExchange reports whether an exchange with a shard may go out. One may at any time. With
// many runners another one may be under way, if there is much to do: Redis deals with one half
// of the tasks while the handlers have the other. With few runners a second exchange would
// only make both groups smaller. In an outage there is one at a time, so that each failure
// is waited out.
func (l *loop) mayExchange(f *feed, now time.Time) bool {
	switch {
	case f.underWay == 0:
		return true
	case f.underWay > 1 || f.overdue > 0 || l.most(f.queue) < halvesFrom || f.health.isOut():
		return false
	}
	enough := l.most(f.queue) / 4
	return len(f.pending) >= enough || f.demand.backlogLikely && l.claimable(f, now) >= f.demand.worthAsking(enough)
}

// claimable is how many tasks the next claim of a shard is for: the free runners, but with many
// not more than half of them, so that two exchanges can take turns, nor more than its queue's turn allows. One of several shards is
// asked for about as many as it had the last time, unless it had more, and for few in an outage:
// runners are not kept for tasks that are not there.
func (l *loop) claimable(f *feed, now time.Time) int {
	if l.stopping != nil || len(l.queues) > 1 && f.health.isOut() { // see probe
		return 0
	}
	most := l.most(f.queue)
	few := max(1, most/16)
	if most >= halvesFrom {
		most -= most / 2
	}
	most = min(most, l.turn(f.queue))
	switch {
	case len(l.feeds) == 1:
	case f.health.isOut():
		most = few
	case !f.demand.backlogLikely:
		most = min(most, 2*f.brought+few)
	}
	return f.demand.size(min(l.freeFor(f), most, MaxGroup), now)
}

// free is how many runners have nothing to do, and are not kept for what a claim may bring.
func (l *loop) free() int { return max(l.Concurrency-l.occupied()-l.reserved, 0) }

// freeOf is how many of them a queue may have.
func (l *loop) freeOf(q *queue) int { return max(min(l.free(), l.most(q)-q.held()), 0) }

// freeFor is how many tasks of a shard may be claimed. While it fails, dispositions that it has
// not taken keep runners from its own tasks, so that there is a bound to their number.
func (l *loop) freeFor(f *feed) int {
	n := l.freeOf(f.queue)
	if f.health.isOut() {
		n -= len(f.pending) + f.sending
	}
	return max(n, 0)
}

// lookAround gives each shard of a queue its turn, once in a poll interval, except those that are watched.
func (l *loop) lookAround(now time.Time) {
	for _, q := range l.sharded {
		if !now.Before(q.nextLook) && l.freeOf(q) > 0 {
			l.lookAroundIn(q, now)
		}
	}
}

func (l *loop) lookAroundIn(q *queue, now time.Time) {
	apart := q.Poll / time.Duration(len(q.feeds))
	for range len(q.feeds) {
		if now.Before(q.nextLook) {
			return
		}
		q.nextLook = q.nextLook.Add(apart)
		q.looked = (q.looked + 1) % len(q.feeds)
		f := q.feeds[q.looked]
		if f.underWay == 0 && f.waiting == nil {
			f.overlooked = true
			f.demand.noteDue()
			l.consider(f)
		}
	}
	q.nextLook = now.Add(apart)
}
