package web

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

const (
	// mostWorkers is how many workers a page lists.
	mostWorkers = 50
	// justClaimed is for how long the worker that has claimed a task may not be known yet: its
	// first heartbeat comes after a second.
	justClaimed = 5 * time.Second
)

// isUnattended reports whether no worker would take the queue's tasks. A pause is told first: then
// none would either.
func isUnattended(s sluice.Stats) bool { return s.Workers == 0 && !s.Paused }

// hasNoRoom reports whether tasks are due, and no worker that runs has room.
func hasNoRoom(s sluice.Stats) bool { return slices.Contains(inspect.Signs(s, 0), inspect.SignNoRoom) }

// processOf writes where a worker runs: its host and process.
func processOf(w sluice.WorkerInfo) string { return w.Host + ":" + strconv.Itoa(w.PID) }

// crew is who works on a queue.
type crew struct {
	Workers []sluice.WorkerInfo // those with stuck handlers first
	Gone    []goneWorker        // who worked on it in the last hour
	Why     string              // why they are not known; empty if they are
}

// find returns a worker, also one that is gone; nil if it is not known.
func (c crew) find(id string) *sluice.WorkerInfo {
	if i := slices.IndexFunc(c.Workers, func(w sluice.WorkerInfo) bool { return w.ID == id }); i >= 0 {
		return &c.Workers[i]
	}
	if i := slices.IndexFunc(c.Gone, func(w goneWorker) bool { return w.ID == id }); i >= 0 {
		return &c.Gone[i].WorkerInfo
	}
	return nil
}

// lookAtWorkers asks who works on the queue.
func (s *series) lookAtWorkers(ctx context.Context) ([]sluice.WorkerInfo, error) {
	q, err := s.open()
	if err != nil {
		return nil, err
	}
	workers, err := q.Workers(ctx)
	if err == nil {
		s.noteGone(ctx, q, workers)
	}
	slices.SortStableFunc(workers, func(a, b sluice.WorkerInfo) int {
		return cmp.Or(cmp.Compare(b.Stuck, a.Stuck), cmp.Compare(a.Label, b.Label), cmp.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID), cmp.Compare(a.ID, b.ID))
	})
	return workers, err
}

// crew returns who works on the queue. An error is told there: the rest of the page is good without
// it.
func (s *series) crew(ctx context.Context) crew {
	workers, err := s.workers.get(ctx)
	if err != nil {
		_, why := explain(err)
		return crew{Gone: s.crews.lately(), Why: why.What + ": " + why.Detail}
	}
	return crew{Workers: workers, Gone: s.crews.lately()}
}

// Listed returns the workers that a page lists, Hidden how many others there are.
func (c crew) Listed() []sluice.WorkerInfo { return c.Workers[:min(len(c.Workers), mostWorkers)] }
func (c crew) Hidden() int                 { return max(0, len(c.Workers)-mostWorkers) }

// Running, Concurrency and Stuck are those of all workers together.
func (c crew) Running() int64 {
	return c.sum(func(w sluice.WorkerInfo) int { return w.Running })
}

func (c crew) Concurrency() int64 {
	return c.sum(func(w sluice.WorkerInfo) int { return w.Concurrency })
}

func (c crew) Stuck() int64 {
	return c.sum(func(w sluice.WorkerInfo) int { return w.Stuck })
}

func (c crew) sum(of func(sluice.WorkerInfo) int) (n int64) {
	for _, w := range c.Workers {
		n += int64(of(w))
	}
	return n
}

// VersionsDiffer reports whether not all workers have the same version of the library.
func (c crew) VersionsDiffer() bool {
	return slices.ContainsFunc(c.Workers, func(w sluice.WorkerInfo) bool { return w.Version != c.Workers[0].Version })
}

// holder is who has a leased task: a worker that lives or, in words, another one.
type holder struct {
	Worker *sluice.WorkerInfo
	Words  string
	IsGone bool
}

// Holder returns who has a leased task, or had a due one until its lease ended.
func (c crew) Holder(t sluice.TaskInfo, now time.Time) holder {
	i := slices.IndexFunc(c.Workers, func(w sluice.WorkerInfo) bool { return w.ID == t.Worker })
	switch {
	case t.LeasedSince.IsZero():
		return holder{Words: "not known"} // an earlier version of the library has claimed it
	case t.Worker == "":
		return holder{Words: "a loop of your own (Claim)"}
	case i >= 0:
		return holder{Worker: &c.Workers[i]}
	case c.find(t.Worker) != nil:
		return holder{Worker: c.find(t.Worker), IsGone: true}
	case c.Why != "":
		return holder{Words: fmt.Sprintf("worker %s, of which no more can be read", shown(cut(t.Worker, 40)))}
	case now.Sub(t.LeasedSince) < justClaimed:
		return holder{Words: "a worker that has just begun, or is gone"}
	}
	return holder{Words: "a worker that is gone", IsGone: true}
}

// fate is what became of tasks.
type fate struct {
	Title, Hint string
	Count       int64
	Rate        change
	IsBad       bool
}

// fates returns what became of a queue's tasks, and how often of late.
func fates(points []point, stats sluice.Stats) []fate {
	all := []fate{
		{"Finished", "by a worker or Dequeue, discarded, or taken by Pop", stats.Finished, newRate(points, point.succeeded), false},
		{"Retried", "failed, and to be tried again", stats.Retried, newRate(points, func(p point) int64 { return p.retried }), true},
		{"Buried", "put among the dead letters", stats.Buried, newRate(points, func(p point) int64 { return p.buried }), true},
		{"Lost", "their lease ran out", stats.Lost, newRate(points, func(p point) int64 { return p.lost }), true},
	}
	if stats.Discarded > 0 {
		all = append(all, fate{Title: "Discarded", Hint: "of the finished ones: by Discard, or expired", Count: stats.Discarded})
	}
	if stats.Trimmed > 0 {
		all = append(all, fate{Title: "Trimmed", Hint: "dead letters that a limit has removed", Count: stats.Trimmed, Rate: newRate(points, func(p point) int64 { return p.trimmed })})
	}
	return all
}
