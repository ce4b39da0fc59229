package taskloop

import (
	"math"
	"time"
)

const (
	// quickly is the time within which a queue may be handed more tasks than it has a share of the runners: those give
	// them back before others miss them, and to claim a few tasks costs as much as to claim many.
	quickly = 10 * time.Millisecond
	// fullFor is for how long no runner is free before others are told of tasks, if the loop has several shards or queues.
	fullFor = 20 * time.Millisecond
)

// queue is what the loop knows of one of its queues, which share its runners.
type queue struct {
	Queue
	feeds    []*feed // by shard
	outages  outages
	looked   int       // the shard that was asked last because it was its turn
	nextLook time.Time // when it is the next one's

	handling int // deliveries whose handlers have not returned
	reserved int // runners that are kept for what claims may bring
	wanting  bool
	busy     bool          // it is wanting, or has handlers
	dealt    float64       // how many tasks it was handed, for its weight
	takes    time.Duration // how long a handler takes, lately; 0 if that is not known
}

// held is how many runners the queue has.
func (q *queue) held() int { return q.handling + q.reserved }

// most is how many runners a queue may have.
func (l *loop) most(q *queue) int { return min(q.Concurrency, l.Concurrency) }

// reserve keeps runners for what a claim of a queue may bring.
func (l *loop) reserve(q *queue, n int) {
	q.reserved += n
	l.reserved += n
}

// weigh notes which queues are to share the runners: those that want tasks, or have some. One that becomes busy has a task before the
// others, and no claim to what it has not had before.
func (l *loop) weigh(now time.Time) {
	if len(l.queues) == 1 {
		return
	}
	for _, q := range l.queues {
		q.wanting = false
	}
	l.weights, l.wanting = 0, 0
	for _, f := range l.lists[wanted] {
		if q := f.queue; f.demand.claimWanted && !q.wanting && !now.Before(f.health.retryAt) && q.held() < l.most(q) {
			q.wanting = true
			l.wanting++
		}
	}
	least := math.Inf(1)
	for _, q := range l.queues {
		if q.busy {
			least = min(least, q.dealt)
		}
	}
	for _, q := range l.queues {
		was := q.busy
		if q.busy = q.wanting || q.held() > 0; !q.busy {
			continue
		}
		l.weights += q.Weight
		if !was && !math.IsInf(least, 1) {
			q.dealt = max(q.dealt, least-1/float64(q.Weight))
		}
	}
}

// deal notes that a queue is to be handed tasks.
func (q *queue) deal(n int) { q.dealt += float64(n) / float64(q.Weight) }

// share is how many runners are a queue's by its weight, as long as others want them. It has more, up to a half, if its handlers are quick.
func (l *loop) share(q *queue) int {
	share := float64(l.Concurrency*q.Weight) / float64(max(l.weights, q.Weight))
	n := int(math.Ceil(share))
	if q.takes > 0 {
		n = max(n, min(int(share*float64(quickly)/float64(q.takes)), l.Concurrency/2))
	}
	return n
}

// turn is how many tasks the next claim of a queue may be for: as many as it likes if no other queue wants any.
func (l *loop) turn(q *queue) int {
	if l.wanting == 0 || l.wanting == 1 && q.wanting {
		return l.Concurrency
	}
	return max(l.share(q)-q.held(), 1)
}

// isBefore reports whether a shard is to be asked before another one. Of two queues that is the one which has not had its
// share of the runners or, if both have or have not, that was handed fewer tasks for its weight.
func (l *loop) isBefore(f, other *feed) bool {
	p, q := f.queue, other.queue
	switch pHas, qHas := p.held() >= l.share(p), q.held() >= l.share(q); {
	case p == q:
		return f.isOlder(other)
	case pHas != qHas:
		return qHas
	}
	return p.dealt < q.dealt
}

// isQuick reports whether the queue's handlers give runners back before others miss them.
func (q *queue) isQuick() bool { return q.takes > 0 && q.takes < quickly }

// isNearly reports whether a queue whose dispositions are to be sent may claim along, though it is the turn of another one: it has not
// had a turn more than that, which are short.
func (l *loop) isNearly(p, other *queue) bool {
	share := l.share(p)
	return p.isQuick() && p.held() < share && p.dealt-other.dealt <= float64(share)/float64(p.Weight)
}

// noteTook notes how long a handler has taken.
func (q *queue) noteTook(took time.Duration) {
	if q.takes == 0 {
		q.takes = took
	}
	q.takes = max(q.takes+(took-q.takes)/8, 1)
}

// resize takes a change of how many handlers there may be.
func (l *loop) resize(r Resize) {
	if r.Queue < 0 {
		l.Concurrency = r.Concurrency
	} else {
		l.queues[r.Queue].Concurrency = r.Concurrency
	}
}

// isFullForLong reports whether no runner is free, and others are to be told of tasks. With several queues or shards one is likely to be
// free soon, and those that are watched stay so.
func (l *loop) isFullForLong() bool {
	if len(l.handling) < l.Concurrency {
		l.fullSince = time.Time{}
		return false
	}
	if len(l.feeds) == 1 {
		return true
	}
	if l.fullSince.IsZero() {
		l.fullSince = time.Now()
	}
	return time.Since(l.fullSince) >= fullFor
}
