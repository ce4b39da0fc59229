package lease

import (
	"sync"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// Inspectable is what an Inspector asks the server about. Its methods are called without
// the inspector's mutex, except Key.
type Inspectable interface {
	// Key is the key that is inspected: it says on which server of a Cluster.
	Key() any
	// Inspection returns the request that tells whether the key is still held.
	Inspection() redisexec.Request
	// HandleInspection takes its result.
	HandleInspection(r redisexec.Result)
}

// Inspector asks the server whether what a holder believes to hold is still there: after
// the key was deleted, evicted or forced open, the callers that wait behind that holder would
// otherwise learn of it at its deadline.
//
// Each server has one pipeline at a time, so that one that hangs costs the other servers no time, and the
// user's pool one connection every five seconds until go-redis gives them up. What gets no answer is not tried again: the
// waiters ask for another inspection.
type Inspector struct {
	executor *redisexec.Executor

	mu sync.Mutex // guards what follows
	// wanted is what is to be inspected, by server (see redisexec.Executor.NodeOf). A server
	// is in it while it has a goroutine.
	wanted map[any]map[Inspectable]bool
}

// NewInspector returns an inspector that sends through executor. It starts nothing.
func NewInspector(executor *redisexec.Executor) *Inspector {
	return &Inspector{executor: executor, wanted: map[any]map[Inspectable]bool{}}
}

// Add has m inspected, beginning now. It does not block. If m waits for its inspection
// already, there is one for both.
func (i *Inspector) Add(m Inspectable) {
	i.mu.Lock()
	defer i.mu.Unlock()
	id := i.executor.NodeOf(m.Key())
	if others, underWay := i.wanted[id]; underWay {
		others[m] = true
		return
	}
	i.wanted[id] = map[Inspectable]bool{m: true}
	// It ends when nothing more is to be inspected on its server. The executor's Close waits for it.
	i.executor.Go(func() { i.inspect(id) })
}

// inspect sends pipelines to one server until nothing is to be inspected on it.
func (i *Inspector) inspect(id any) {
	for {
		members := i.next(id)
		if len(members) == 0 {
			return
		}
		requests := make([]redisexec.Request, len(members))
		for at, m := range members {
			requests[at] = m.Inspection()
		}
		for at, r := range i.executor.BoundedPipeline(requests) {
			members[at].HandleInspection(r)
		}
	}
}

// next takes what is to be inspected on a server, as much as one pipeline has.
func (i *Inspector) next(id any) (members []Inspectable) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for m := range i.wanted[id] {
		if len(members) == maxBatch {
			return members
		}
		members = append(members, m)
		delete(i.wanted[id], m)
	}
	if len(members) == 0 {
		delete(i.wanted, id)
	}
	return members
}
