package taskloop

import "time"

// client is what the loop knows of a client of Redis, by which it reaches some of its queues.
type client struct {
	queues  int
	turns   turns  // of its queues
	unknown int    // queues that have never answered
	beside  [2]int // exchanges under way that hold back others; see queue.beside
	probes  int    // exchanges under way that find out whether an outage is over
}

// queue is what the loop knows of one of its queues, which share its runners. Nothing in the loop
// looks at all queues: those that have something to do are in its lists, and among the turns of
// their client.
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

	underWay int       // exchanges that are waited for
	asked    time.Time // when the last of them was sent
	sending  int       // dispositions in them
	overdue  int       // those of them that keep no runners any more

	usual   time.Duration // how long an exchange takes; 0 if that is not known
	brought int           // how many tasks the last claim has

	account account // of what it was dealt
	turn    float64 // when its next claim is to be, see turnOf
	place   int     // in its client's turns; -1 if it has none
	hadNone bool    // nothing was due, until now
	wasAway bool    // its server did not answer, until now
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
