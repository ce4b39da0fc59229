package web

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

const (
	// lingers is for how long a queue is listed that is empty now.
	lingers = 5 * time.Minute
	// mostSeries is of how many queues figures are kept: those that were looked at last.
	mostSeries = mostLooked + 200
	// mostLooked is at how many queues the list looks: it lists the first of these, in its order.
	mostLooked = 1000
	// mostQueues is how many queues one page lists.
	mostQueues = 200
	// workersEvery is for how long what the workers have said is good: they say it each 15 seconds.
	workersEvery = 5 * time.Second
	// lookers is of how many queues a page asks at the same time.
	lookers = 16
)

// watch has the figures of queues, for all viewers together. Redis is asked only for a viewer who
// waits for the answer.
type watch struct {
	page  *page
	names *shared[found]

	mu     sync.Mutex // guards what follows
	series map[string]*series
}

// found is what a search for queues has found.
type found struct {
	names      []string
	incomplete bool
}

func newWatch(p *page) *watch {
	w := &watch{page: p, series: map[string]*series{}}
	w.names = &shared[found]{every: 5 * time.Second, look: func(ctx context.Context) (found, error) {
		names, err := inspect.Queues(ctx, p.rdb, p.keys)
		if err != nil && !errors.Is(err, inspect.ErrIncomplete) {
			return found{}, err
		}
		return found{names: names, incomplete: err != nil}, nil
	}}
	return w
}

// queues returns the names of all queues: those that were found, and those that were there a moment
// ago and are empty now, so that one which drains does not vanish while it is watched.
func (w *watch) queues(ctx context.Context) (found, error) {
	f, err := w.names.get(withAge(ctx, nil)) // names are no figures
	if err != nil {
		return f, err
	}
	names := slices.Clone(f.names)
	w.mu.Lock()
	for name, s := range w.series {
		if s.past.wasThere(time.Now()) {
			names = append(names, name)
		}
	}
	w.mu.Unlock()
	slices.Sort(names)
	return found{names: slices.Compact(names), incomplete: f.incomplete}, nil
}

// of returns the figures of a queue, whether it exists or not.
func (w *watch) of(name string) *series {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.series[name]
	if s == nil {
		if len(w.series) >= mostSeries {
			w.forgetOne()
		}
		s = &series{page: w.page, name: name}
		s.stats = &shared[sluice.Stats]{every: time.Second, look: s.look}
		s.workers = &shared[[]sluice.WorkerInfo]{every: workersEvery, look: s.lookAtWorkers}
		s.reasons = &shared[inspect.Reasons]{every: workersEvery, look: s.lookAtReasons}
		w.series[name] = s
	}
	s.asked = time.Now()
	return s
}

// forgetOne drops the figures that no viewer has asked for longest.
func (w *watch) forgetOne() {
	var oldest *series
	for _, s := range w.series {
		if oldest == nil || s.asked.Before(oldest.asked) {
			oldest = s
		}
	}
	delete(w.series, oldest.name)
}

// series has the figures of one queue, and what became of who worked on it.
type series struct {
	page    *page
	name    string
	stats   *shared[sluice.Stats]
	workers *shared[[]sluice.WorkerInfo]
	reasons *shared[inspect.Reasons] // of the dead letters
	asked   time.Time                // guarded by watch.mu
	past    history
	crews   crews
}

// look asks for the queue's figures and notes them.
func (s *series) look(ctx context.Context) (sluice.Stats, error) {
	q, err := s.open()
	if err != nil {
		return sluice.Stats{}, err
	}
	stats, err := q.Stats(ctx)
	if err != nil {
		return sluice.Stats{}, err
	}
	s.past.note(time.Now(), stats)
	return stats, nil
}

// lookAtReasons asks why the queue's dead letters are dead.
func (s *series) lookAtReasons(ctx context.Context) (inspect.Reasons, error) {
	q, err := s.open()
	if err != nil {
		return inspect.Reasons{}, err
	}
	return inspect.ReasonsOf(ctx, q, mostReasonsOf, longestReasons)
}

// open returns the queue. It sends nothing: an error is that of the name.
func (s *series) open() (*sluice.Queue, error) {
	return inspect.Open(s.page.rdb, s.name, s.page.keys)
}
