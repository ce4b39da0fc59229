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
	// mostHolders is of how many tasks the last holder is kept, of all queues: 3 MB or so.
	mostHolders = 10_000
	// soonest is how many leased tasks of a queue Watch looks at: those whose leases end first, among
	// which are those whose holders do not extend them any more.
	soonest = 50
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
	s.page.holders.note(s.name, crew{Workers: workers, Gone: s.crews.lately()}, leased)
}

// noteHolders remembers who has the tasks whose leases end next.
func (s *series) noteHolders(ctx context.Context) {
	q, err := s.open()
	if err != nil {
		return
	}
	leased, err := q.List(ctx, sluice.StateLeased, sluice.TaskInfo{}, soonest, sluice.WithoutPayloads())
	if err == nil && slices.ContainsFunc(leased, func(t sluice.TaskInfo) bool { return t.Worker != "" }) {
		s.page.holders.note(s.name, s.crew(ctx), leased)
	}
}

// lastHolder is the worker that a task was last seen with.
type lastHolder struct {
	Worker      sluice.WorkerInfo // or only its ID, if no more is known
	LeasedSince time.Time
	SeenAt      time.Time // by this process's clock
}

// holders remembers with which workers tasks were seen: of those that were seen last. The zero
// value is ready.
type holders struct {
	mu    sync.Mutex // guards what follows
	last  map[lookKey]lastHolder
	order []lookKey // of last, as a ring
	next  int       // where the next one goes
}

// note remembers the holders of leased tasks. Those of Claim have no name.
func (h *holders) note(queue string, c crew, leased []sluice.TaskInfo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == nil {
		h.last = map[lookKey]lastHolder{}
	}
	for _, t := range leased {
		if t.Worker == "" || len(t.ID) > longestID {
			continue
		}
		key := lookKey{queue, strings.Clone(t.ID)}
		if _, known := h.last[key]; !known {
			if len(h.order) < mostHolders {
				h.order = append(h.order, key)
			} else {
				delete(h.last, h.order[h.next])
				h.order[h.next] = key
				h.next = (h.next + 1) % mostHolders
			}
		}
		w := sluice.WorkerInfo{ID: t.Worker}
		if known := c.find(t.Worker); known != nil {
			w = *known
		}
		h.last[key] = lastHolder{briefly(w), t.LeasedSince, time.Now()}
	}
}

// of returns the worker that a task was last seen with, nil if none is known.
func (h *holders) of(queue, id string) *lastHolder {
	h.mu.Lock()
	defer h.mu.Unlock()
	if last, known := h.last[lookKey{queue, id}]; known {
		return &last
	}
	return nil
}
