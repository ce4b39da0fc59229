package taskloop

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// leastPatience and mostPatience bound for how long an exchange holds back those of other shards, so that groups
	// form meanwhile. One that takes longer has a server that hangs.
	leastPatience = time.Millisecond
	mostPatience  = 20 * time.Millisecond
	// minLapse and firstLapse are how long an exchange keeps runners for what it may bring, while
	// others need them: at least, and before the shard has answered any.
	minLapse   = 20 * time.Millisecond
	firstLapse = 100 * time.Millisecond
	// fullFor is for how long no runner is free before others are told of tasks, if the queue has several shards.
	fullFor = 20 * time.Millisecond
	// minSlack is by how much the head of a shard may be younger than the oldest one, for a claim
	// to go along with its dispositions: at least.
	minSlack = 2 * time.Millisecond
	// runnersPerSlot is for how many runners there is another exchange at a time, beside two.
	runnersPerSlot = 256
)

// feed is what the loop knows of one shard of a queue. Nothing in the loop looks at all
// feeds in a turn: those that have something to do are in its lists.
type feed struct {
	queue   *queue
	shard   int
	listed  [lists]bool // which of the loop's lists it is in
	demand  demand
	health  health
	waiting *waiting // for something to be due; nil if the loop is not

	pending  []*delivery // their dispositions are to be sent to this shard
	handling int         // deliveries whose handlers have not returned, except stuck ones

	toExtend   []*delivery // their leases are to be extended
	unsorted   bool        // some of these were added at the end
	extensions int         // under way
	failed     bool        // one of them has failed, since there was none

	underWay int // exchanges that are waited for
	sending  int // dispositions in them
	overdue  int // those of them that keep no runners any more

	usual      time.Duration // how long an exchange takes; 0 if that is not known
	head       time.Time     // when the earliest task is due, as far as is known; zero if it is not
	brought    int           // how many tasks the last claim has
	overlooked bool          // it is its turn to be asked, whatever is known
}

// The lists of feeds.
const (
	reporters = iota // those with dispositions to be sent, in the order of asking
	wanted           // a claim may bring something
	idle             // nothing is due, and they are not watched
	lists
)

// list adds a feed to a list, if it is not in it.
func (l *loop) list(f *feed, in int) {
	if !f.listed[in] {
		f.listed[in] = true
		l.lists[in] = append(l.lists[in], f)
	}
}

// drop takes the i-th feed off a list, and keeps the order of the others.
func (l *loop) drop(in, i int) {
	l.lists[in][i].listed[in] = false
	l.lists[in] = slices.Delete(l.lists[in], i, i+1)
}

// consider adds a feed to the lists where it belongs. Those where it does not belong any more
// drop it when they are looked through.
func (l *loop) consider(f *feed) {
	if len(f.pending) > 0 {
		l.list(f, reporters)
	}
	switch {
	case l.stopping != nil:
	case f.demand.claimWanted:
		l.list(f, wanted)
	case f.underWay == 0 && f.waiting == nil:
		l.list(f, idle)
	}
}

// open makes a feed for each shard of each queue. All are asked first, in any order.
func (l *loop) open() {
	clients := map[any]*client{}
	for _, config := range l.Queues {
		c := clients[config.Client]
		if c == nil {
			c = new(client)
			clients[config.Client], l.clients = c, append(l.clients, c)
		}
		c.queues++
		q := &queue{Queue: config, outages: outages{log: config.Log}, client: c}
		l.queues = append(l.queues, q)
		for i := range max(q.Source.Shards(), 1) {
			f := &feed{queue: q, shard: i, health: health{outages: &q.outages, shard: i}}
			f.demand.noteDue()
			c.unknown++
			q.feeds = append(q.feeds, f)
		}
		if q.outages.shards = len(q.feeds); len(q.feeds) > 1 {
			l.sharded = append(l.sharded, q)
		}
		l.feeds = append(l.feeds, q.feeds...)
	}
	l.noteMost()
	for _, i := range rand.Perm(len(l.feeds)) {
		l.consider(l.feeds[i])
	}
}

// feedOf returns the feed to which a task of a queue belongs: its disposition and its extensions go there.
func (q *queue) feedOf(id string) *feed {
	if len(q.feeds) == 1 {
		return q.feeds[0]
	}
	return q.feeds[q.Source.ShardOf(id)]
}

// addPending has a delivery's disposition sent.
func (l *loop) addPending(d *delivery) {
	f := d.feed
	f.pending = append(f.pending, d)
	l.pending++
	l.list(f, reporters)
	if f.demand.limited {
		f.demand.noteDue()
		l.consider(f)
	}
}

// setPending replaces what is pending by some of it.
func (l *loop) setPending(f *feed, left []*delivery) {
	l.pending -= len(f.pending) - len(left)
	clear(f.pending[len(left):])
	f.pending = left
}

// waiting is a Source.Wait that is under way.
type waiting struct {
	feed  *feed
	since time.Time
	stop  context.CancelFunc
	ended bool // the loop has stopped it
	err   error
}

// end stops it. What it returns is of no interest.
func (w *waiting) end() {
	w.ended = true
	w.stop()
}

// wait has those shards watched in which nothing is due, while a runner is free. While all are busy, others are told of tasks. With several
// queues they are always watched: one that has a task is to have the next runner.
func (l *loop) wait() {
	if len(l.queues) == 1 && l.isFullForLong() && l.waits > 0 {
		l.endWaits()
	}
	if len(l.lists[idle]) == 0 || len(l.queues) == 1 && l.free() == 0 {
		return
	}
	for i := 0; i < len(l.lists[idle]); {
		f := l.lists[idle][i]
		if f.underWay == 0 && f.waiting == nil && !f.demand.claimWanted && l.stopping == nil {
			if len(l.queues) == 1 && l.freeFor(f) == 0 {
				i++
				continue
			}
			l.watch(f)
		}
		l.drop(idle, i)
	}
}

// isFullForLong reports whether no runner is free. With several shards one is likely to be free soon, and those that are watched stay so.
func (l *loop) isFullForLong() bool {
	if l.occupied() < l.Concurrency {
		l.fullSince = time.Time{}
	} else if l.fullSince.IsZero() {
		l.fullSince = time.Now()
	}
	return !l.fullSince.IsZero() && (len(l.feeds) == 1 || time.Since(l.fullSince) >= fullFor)
}

// watch has a shard watched. The goroutine ends when Source.Wait returns: stop and close end that, and close waits for it.
func (l *loop) watch(f *feed) {
	ctx, stop := context.WithCancel(context.Background())
	w := &waiting{feed: f, since: time.Now(), stop: stop}
	f.waiting = w
	l.waits++
	go func() {
		defer stop()
		w.err = f.queue.Source.Wait(ctx, f.shard)
		l.waited <- w
	}()
}

// woken notes that something may be due or, after an error, that a claim has to find out.
func (l *loop) woken(w *waiting) {
	f := w.feed
	f.waiting = nil
	l.waits--
	if !w.ended || l.stopping != nil {
		f.demand.noteDue()
	}
	switch {
	case w.ended || l.stopping != nil:
	case w.err != nil:
		if time.Since(w.since) > retryLast {
			f.health.reset(watching) // it has worked in between
		}
		f.health.noteFailure(watching, w.err)
	default: // that a task is due need not come from the server: what claims it shows whether there is one
		f.health.reset(watching)
		f.head = time.Now()
	}
	l.consider(f)
}
