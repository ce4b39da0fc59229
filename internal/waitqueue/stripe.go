package waitqueue

import (
	"sync"

	"github.com/sluice-go/sluice/internal/shrink"
)

const (
	// enough is how many idle names a stripe keeps at least.
	enough = 4
	// enoughChannels is how many channels a stripe keeps at most.
	enoughChannels = 8
)

// stripe is the queues of a part of the names.
type stripe[V any] struct {
	mu     sync.Mutex           // guards what follows, and these queues and their waiters
	queues map[string]*queue[V] // by name
	peak   int                  // the most queues so far, see shrink.Map
	all    []*queue[V]          // the same queues, each at its place
	next   int                  // the place at which makeRoom looks next
	busy   int                  // how many queues have a head
	spare  []chan Turn          // of waiters that have handed over: empty, for others to wait on
	closed bool
	_      [64]byte // on another cache line than the next one's mutex
}

// The methods in this file are called with the stripe's mutex held.

// add adds the queue of a name.
func (p *stripe[V]) add(name string, value V) *queue[V] {
	p.makeRoom()
	q := &queue[V]{value: value, name: name, stripe: p, place: len(p.all)}
	p.queues[name], p.all = q, append(p.all, q)
	return q
}

// makeRoom drops idle queues while there are more than enough: until then, an idle queue
// spares the next waiter for that name its making. It also drops those whose head has lost
// what it held and for which nothing waits, so that forgetting to give back leaks nothing.
//
// It looks at a few queues, in turn: until three of them stay, and at 16 at most. Every name that
// comes, and every queue that becomes idle, makes it look at more of them than that adds.
func (p *stripe[V]) makeRoom() {
	for looks, stay := 0, 0; looks < 16 && stay < 3 && len(p.all) > enough; looks++ {
		p.next %= len(p.all)
		q := p.all[p.next]
		forgotten := q.held && q.waiting.first == nil && expired(q.head)
		if forgotten { // it is nothing to its queue any more, should it give back at last
			q.head, q.held = nil, false
			q.stopWatching()
			p.busy--
		}
		if forgotten || q.head == nil && len(p.all)-p.busy > 2*p.busy+enough {
			p.drop(q)
			continue
		}
		p.next++
		stay++
	}
}

// drop forgets a queue. The last one takes its place.
func (p *stripe[V]) drop(q *queue[V]) {
	delete(p.queues, q.name)
	p.queues = shrink.Map(p.queues, &p.peak)
	last := len(p.all) - 1
	p.all[q.place], p.all[last].place, p.all[last] = p.all[last], q.place, nil
	p.all = shrink.Slice(p.all[:last])
}

// channel returns one for a waiter's turn.
func (p *stripe[V]) channel() chan Turn {
	last := len(p.spare) - 1
	if last < 0 {
		return make(chan Turn, 1)
	}
	c := p.spare[last]
	p.spare = p.spare[:last]
	return c
}
