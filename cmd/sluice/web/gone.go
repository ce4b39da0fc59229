package web

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
)

const (
	// goneFor is for how long a worker is shown that is gone.
	goneFor = time.Hour
	// mostGone is how many of a queue's workers are kept that are gone: those that had most.
	mostGone = 20
	// mostHad is how many IDs are kept of the tasks that such a worker had.
	mostHad = 10
	// mostName is how many characters are kept of a name that a worker gives itself.
	mostName = 200
)

// goneWorker is a worker that has ended or died: that is not told apart.
type goneWorker struct {
	sluice.WorkerInfo           // as it was last seen
	Missed            time.Time // when it was not listed any more
	Tasks             []string  // the IDs of the first tasks that were still leased to it then
	Others            int       // how many other tasks were
}

// crews remembers who worked on a queue.
type crews struct {
	mu    sync.Mutex // guards what follows
	known map[string]sluice.WorkerInfo
	gone  []goneWorker // that which was missed last is first
}

// note replaces who works, and returns who does not any more.
func (c *crews) note(workers []sluice.WorkerInfo) (missed []sluice.WorkerInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := make(map[string]sluice.WorkerInfo, len(workers))
	for _, w := range workers {
		now[w.ID] = briefly(w)
	}
	for id, w := range c.known {
		if _, lives := now[id]; !lives {
			missed = append(missed, w)
		}
	}
	c.known = now
	c.gone = slices.DeleteFunc(c.gone, func(w goneWorker) bool {
		_, lives := now[w.ID] // its heartbeat was late
		return lives || time.Since(w.Missed) > goneFor
	})
	return missed
}

// briefly returns a worker without the rest of names that are far too long.
func briefly(w sluice.WorkerInfo) sluice.WorkerInfo {
	for _, name := range []*string{&w.Label, &w.Host, &w.Version, &w.ID} {
		*name = strings.Clone(cut(*name, mostName))
	}
	return w
}

// bury keeps workers that were missed, with the tasks that were leased to them.
func (c *crews) bury(missed []sluice.WorkerInfo, leased []sluice.TaskInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range missed {
		g := goneWorker{WorkerInfo: w, Missed: time.Now()}
		for _, t := range leased {
			switch {
			case t.Worker != w.ID:
			case len(g.Tasks) < mostHad && len(t.ID) <= longestID:
				g.Tasks = append(g.Tasks, strings.Clone(t.ID))
			default:
				g.Others++
			}
		}
		c.gone = append(c.gone, g)
	}
	slices.SortStableFunc(c.gone, func(a, b goneWorker) int {
		return cmp.Or(cmp.Compare(len(b.Tasks), len(a.Tasks)), cmp.Compare(b.Running, a.Running), b.Missed.Compare(a.Missed))
	})
	c.gone = slices.Clip(c.gone[:min(len(c.gone), mostGone)])
}

// lately returns those who are gone since less than an hour.
func (c *crews) lately() []goneWorker {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.gone), func(w goneWorker) bool { return time.Since(w.Missed) > goneFor })
}

// hasAny reports whether a Worker has worked on the queue of late: it is to be seen when they stop.
func (c *crews) hasAny() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.known)+len(c.gone) > 0
}

// noteGone keeps the workers that are listed no more, with what they had.
func (s *series) noteGone(ctx context.Context, q *sluice.Queue, workers []sluice.WorkerInfo) {
	missed := s.crews.note(workers)
	if len(missed) == 0 {
		return
	}
	// Without an answer it is not known what they had; that they are gone is.
	leased, _ := q.List(ctx, sluice.StateLeased, sluice.TaskInfo{}, mostPerPage, sluice.WithoutPayloads())
	s.crews.bury(missed, leased)
}
