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
	// remembered is how long a queue's figures are kept for its charts.
	remembered = 5 * time.Minute
	// mostSeries is of how many queues figures are kept: those that were looked at last.
	mostSeries = mostLooked + 200
	// mostLooked is at how many queues the list looks: it lists the first of these, in its order.
	mostLooked = 1000
	// mostQueues is how many queues one page lists.
	mostQueues = 200
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
		if s.wasThere() {
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
		s.workers = &shared[[]sluice.WorkerInfo]{every: time.Second, look: s.lookAtWorkers}
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

// series has the figures of one queue over the last minutes.
type series struct {
	page    *page
	name    string
	stats   *shared[sluice.Stats]
	workers *shared[[]sluice.WorkerInfo]
	asked   time.Time // guarded by watch.mu

	mu     sync.Mutex // guards what follows
	points []point
}

// point is what a queue was at a time.
type point struct {
	at                                          time.Time
	due, scheduled, waiting, leased, dead, done int64
	// Since the counts began.
	finished, retried, buried, lost, trimmed int64
}

// sum counts what is in the queue, without what is only remembered.
func (p point) sum() int64 { return p.due + p.scheduled + p.waiting + p.leased + p.dead }

// failed counts the attempts that were no success, and succeeded those that were.
func (p point) failed() int64    { return p.retried + p.buried + p.lost }
func (p point) succeeded() int64 { return p.finished }

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
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.points = slices.DeleteFunc(s.points, func(p point) bool { return now.Sub(p.at) > remembered })
	s.points = append(s.points, point{now, stats.Due, stats.Scheduled, stats.GroupWaiting, stats.Leased, stats.Dead, stats.Done, stats.Finished, stats.Retried, stats.Buried, stats.Lost, stats.Trimmed})
	return stats, nil
}

// open returns the queue. It sends nothing: an error is that of the name.
func (s *series) open() (*sluice.Queue, error) {
	return inspect.Open(s.page.rdb, s.name, s.page.keys)
}

// history returns the figures of the last minutes, the oldest first.
func (s *series) history() []point {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.points)
}

// wasThere reports whether the queue had any task in the last minutes.
func (s *series) wasThere() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.points, func(p point) bool { return p.sum() > 0 && time.Since(p.at) <= remembered })
}
