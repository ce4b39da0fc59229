package taskloop

import (
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/background"
)

// Sizes are how many handlers there may be at once. Those that are too many go on until they
// return.
type Sizes struct {
	changed chan struct{} // cap 1

	mu  sync.Mutex  // guards what follows
	new map[int]int // by queue
}

// AllQueues stands for all queues of a loop together.
const AllQueues = -1

// NewSizes returns the Sizes of a loop that is to run.
func NewSizes() *Sizes { return &Sizes{changed: make(chan struct{}, 1), new: map[int]int{}} }

// Set changes the number of a queue, by its place in Config.Queues, or of AllQueues. It never
// blocks.
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
		l.consider(q)
	}
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
