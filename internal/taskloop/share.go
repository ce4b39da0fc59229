package taskloop

import (
	"math"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/background"
)

// quickly is the time within which a queue may be handed more tasks than it has a share of the runners: those give
// them back before others miss them, and to claim a few tasks costs as much as to claim many.
const quickly = 10 * time.Millisecond

// client is what the loop knows of a client of Redis, by which it reaches some of its queues.
type client struct {
	queues  int
	unknown int    // queues that have never answered
	beside  [2]int // exchanges under way that hold back others; see queue.beside
	probes  int    // exchanges under way that find out whether an outage is over
}

// queue is what the loop knows of one of its queues, which share its runners. Nothing in the loop looks at all queues in a turn,
// but for weigh: those that have something to do are in its lists.
type queue struct {
	Queue
	client *client
	listed [lists]bool // which of the loop's lists it is in

	demand  demand
	health  health
	waiting *waiting // for something to be due; nil if the loop is not

	pending  []*delivery // their dispositions are to be sent
	handling int         // deliveries whose handlers have not returned
	active   int         // those of them that are not stuck
	replaced int         // those whose places others have, see replace
	reserved int         // runners that are kept for what claims may bring

	toExtend   []*delivery // their leases are to be extended
	unsorted   bool        // some of these were added at the end
	extensions int         // under way
	failed     bool        // one of them has failed, since there was none

	underWay int // exchanges that are waited for
	sending  int // dispositions in them
	overdue  int // those of them that keep no runners any more

	usual   time.Duration // how long an exchange takes; 0 if that is not known
	brought int           // how many tasks the last claim has

	wanting bool          // it may be asked for tasks now
	capped  bool          // what it may have at most is less than its share
	busy    bool          // it is wanting, or has handlers
	dealt   float64       // how many tasks it was handed, for its weight
	takes   time.Duration // how long a handler takes, lately; 0 if that is not known
}

// held is how many runners the queue has.
func (q *queue) held() int { return q.occupied() + q.reserved }

// most is how many runners a queue may have.
func (l *loop) most(q *queue) int { return min(q.Concurrency, l.Concurrency) }

// reserve keeps runners for what a claim of a queue may bring.
func (l *loop) reserve(q *queue, n int) {
	q.reserved += n
	l.reserved += n
}

// weigh notes which queues share which runners: those that may be asked for tasks share what the others do not have. One that becomes busy has a
// task before the others.
func (l *loop) weigh() {
	if len(l.queues) == 1 {
		return
	}
	for _, q := range l.queues {
		q.wanting = false
	}
	for _, q := range l.lists[wanted] {
		q.wanting = q.wanting || q.demand.claimWanted && !q.health.isOut() && q.overdue == 0 && q.held() < l.most(q)
	}
	l.available, l.weights, l.wanting = float64(l.Concurrency), 0, 0
	least := math.Inf(1)
	for _, q := range l.queues {
		if q.busy {
			least = min(least, q.dealt)
		}
		if q.capped = false; q.wanting {
			l.wanting++
			l.weights += float64(q.Weight)
		} else {
			l.available -= float64(q.held())
		}
	}
	for _, q := range l.queues {
		was := q.busy
		if q.busy = q.wanting || q.held() > 0; q.busy && !was && !math.IsInf(least, 1) {
			q.dealt = least - 1/float64(q.Weight)
		}
		if most := float64(l.most(q)); q.wanting && l.proportion(q) > most {
			q.capped = true
			l.available -= most
			l.weights -= float64(q.Weight)
		}
	}
}

// proportion is how many runners are a queue's by its weight.
func (l *loop) proportion(q *queue) float64 {
	if q.capped {
		return float64(l.most(q))
	}
	return max(l.available, 0) * float64(q.Weight) / max(l.weights, float64(q.Weight))
}

// probe returns a queue whose outage may be over: it is asked for a task, whether a runner is free or not. One at a time for a client.
func (l *loop) probe(now time.Time) *queue {
	if len(l.queues) == 1 || l.stopping != nil {
		return nil
	}
	for _, q := range l.lists[wanted] {
		switch {
		case !q.demand.claimWanted || !q.health.isOut() || q.underWay > 0 || q.client.probes > 0:
		case now.Before(q.health.retryAt):
			l.nextTry = sooner(l.nextTry, q.health.retryAt)
		default:
			return q
		}
	}
	return nil
}

// deal notes that a queue is to be handed tasks.
func (q *queue) deal(n int) { q.dealt += float64(n) / float64(q.Weight) }

// share is how many runners a queue may have, as long as others want them: more, up to a half, if its handlers are quick.
func (l *loop) share(q *queue) int {
	share := l.proportion(q)
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

// isBefore reports whether a queue is to be asked before another one: it has not had its share of the runners or, if both have
// or have not, was handed fewer tasks for its weight.
func (l *loop) isBefore(q, other *queue) bool {
	if has, otherHas := q.held() >= l.share(q), other.held() >= l.share(other); has != otherHas {
		return otherHas
	}
	return q.dealt < other.dealt
}

// noteTook notes how long a handler has taken.
func (q *queue) noteTook(took time.Duration) {
	if q.takes == 0 {
		q.takes = took
	}
	q.takes = max(q.takes+(took-q.takes)/8, 1)
}

// Sizes are how many handlers there may be at once. Those that are too many go on until they return.
type Sizes struct {
	changed chan struct{} // cap 1

	mu  sync.Mutex  // guards what follows
	new map[int]int // by queue
}

// AllQueues stands for all queues of a loop together.
const AllQueues = -1

// NewSizes returns the Sizes of a loop that is to run.
func NewSizes() *Sizes { return &Sizes{changed: make(chan struct{}, 1), new: map[int]int{}} }

// Set changes the number of a queue, by its place in Config.Queues, or of AllQueues. It never blocks.
func (s *Sizes) Set(queue, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.new[queue] = n
	background.Signal(s.changed)
}

// resize takes what was changed.
func (l *loop) resize() {
	l.Sizes.mu.Lock()
	defer l.Sizes.mu.Unlock()
	for queue, n := range l.Sizes.new {
		if queue == AllQueues {
			l.Concurrency = n
		} else {
			l.queues[queue].Concurrency = n
		}
	}
	clear(l.Sizes.new)
	l.noteMost()
	for _, q := range l.queues {
		if q.Counters.Stuck.Load() > int64(q.replaced) {
			l.scheduleCheck(time.Now()) // more stuck handlers may be replaced
			return
		}
	}
}

// noteMost notes how many handlers each queue may have.
func (l *loop) noteMost() {
	for _, q := range l.queues {
		q.Counters.Most.Store(int64(l.most(q)))
	}
}
