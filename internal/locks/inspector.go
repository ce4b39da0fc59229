package locks

import (
	"sync"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// maxInspected is the most inspections that one pipeline has.
const maxInspected = 1000

// inspector asks the server whether what a holder believes to hold is still there: after
// the key was deleted, evicted or forced open, the callers that wait behind that holder would
// otherwise learn of it at its deadline.
//
// Each server has one pipeline at a time, so that one that hangs costs the other servers no time,
// and the user's pool one connection every five seconds until go-redis gives them up. What gets no
// answer is not tried again: the waiters ask for another inspection.
type inspector struct {
	executor *redisexec.Executor

	mu sync.Mutex // guards what follows
	// wanted is what is to be inspected, by server (see redisexec.Executor.NodeOf). A server
	// is in it while it has a goroutine.
	wanted map[any]map[*Hold]bool
}

// newInspector returns an inspector that sends through executor. It starts nothing.
func newInspector(executor *redisexec.Executor) *inspector {
	return &inspector{executor: executor, wanted: map[any]map[*Hold]bool{}}
}

// add has h inspected, beginning now. It does not block. If h waits for its inspection
// already, there is one for both.
func (i *inspector) add(h *Hold) {
	i.mu.Lock()
	defer i.mu.Unlock()
	id := i.executor.NodeOf(h.Key())
	if others, underWay := i.wanted[id]; underWay {
		others[h] = true
		return
	}
	i.wanted[id] = map[*Hold]bool{h: true}
	// It ends when nothing more is to be inspected on its server. The executor's Close waits for
	// it.
	i.executor.Go(func() { i.inspect(id) })
}

// inspect sends pipelines to one server until nothing is to be inspected on it.
func (i *inspector) inspect(id any) {
	for {
		holds := i.next(id)
		if len(holds) == 0 {
			return
		}
		requests := make([]redisexec.Request, len(holds))
		for at, h := range holds {
			requests[at] = h.inspection()
		}
		for at, r := range i.executor.BoundedPipeline(requests) {
			holds[at].handleInspection(r)
		}
	}
}

// next takes what is to be inspected on a server, as much as one pipeline has.
func (i *inspector) next(id any) (holds []*Hold) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for h := range i.wanted[id] {
		if len(holds) == maxInspected {
			return holds
		}
		holds = append(holds, h)
		delete(i.wanted[id], h)
	}
	if len(holds) == 0 {
		delete(i.wanted, id)
	}
	return holds
}
