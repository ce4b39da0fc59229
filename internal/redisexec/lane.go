package redisexec

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/groupcommit"
)

const (
	// alonePerServer is how many small requests go to a server at once, each by itself, before
	// what comes waits for a pipeline.
	alonePerServer = 2
	// lanePatience is how long a small request waits at least for what is under way, and twice
	// as long at most. It bounds what it loses where the round trip takes long.
	lanePatience = 2 * time.Millisecond
	// maxShared is the most requests that share a pipeline. Each is a kilobyte or so at the most:
	// names and tokens are that short.
	maxShared = 128
	// maxLanes is how many servers are remembered. A Cluster's client makes a new one of each
	// that comes back.
	maxLanes = 1024
)

// lane is the way of small requests to one server: alone while little is under way, else in
// pipelines that they share. One that hangs costs the requests that are in it; the others
// wait for it for a few milliseconds.
type lane = groupcommit.Committer[*attempt, struct{}]

// place is an attempt's in the next pipeline of a lane.
type place = groupcommit.Call[*attempt, struct{}]

// lanes are those of an executor.
type lanes struct {
	mu    sync.Mutex // guards what follows
	byKey map[laneKey]*lane
}

// laneKey says which requests share pipelines. Those that replicas are to acknowledge, and which
// are waited for equally long, have a lane of their own: their pipelines end with a WAIT, which
// no other request waits for.
type laneKey struct {
	node     any // nil, except on a Cluster
	replicas int
	wait     time.Duration
}

// laneOf returns the lane of a request, or nil if it is sent by itself: it is not small, or the
// client does not say where it goes. An autopipeline has pipelines of its own.
func (e *Executor) laneOf(r *Request) *lane {
	if !r.Small {
		return nil
	}
	var node any
	if !e.single {
		if node = e.NodeOf(r.Key()); node == nil {
			return nil
		}
	}
	key := laneKey{node: node}
	if r.isReplicated() {
		key.replicas, key.wait = r.Replicas, r.ReplicaWait
	}
	e.lanes.mu.Lock()
	defer e.lanes.mu.Unlock()
	l := e.lanes.byKey[key]
	if l == nil {
		if len(e.lanes.byKey) >= maxLanes {
			clear(e.lanes.byKey) // what waits in one of them is sent all the same
		}
		l = e.newLane()
		e.lanes.byKey[key] = l
	}
	return l
}

func (e *Executor) newLane() *lane {
	return groupcommit.New(groupcommit.Config[*attempt, struct{}]{
		Alone: alonePerServer, Items: maxShared, Bytes: maxShared, Patience: lanePatience,
		Start:  e.StartFunc,
		Commit: e.sendShared,
	})
}

// sendShared sends attempts in one pipeline, and deals with their results.
func (e *Executor) sendShared(places []*place) {
	attempts := make([]*attempt, len(places))
	requests := make([]Request, len(places))
	for i, p := range places {
		attempts[i], requests[i] = p.Arg, p.Arg.request
	}
	results := unanswered(len(places))
	defer func() { // also if a hook of the client's ends the goroutine
		for i, a := range attempts {
			a.result = results[i]
			a.end()
		}
	}()
	// The context is no caller's, since it must end with none of them; it has the values of
	// the first one's, for the client's hooks.
	results = e.SendAll(context.WithoutCancel(attempts[0].ctx), requests)
}
