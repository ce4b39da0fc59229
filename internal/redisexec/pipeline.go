package redisexec

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// Pipeline sends each of the requests once, all of them in one pipeline, and returns
// their results in order. It returns when ctx ends: the outcomes are then [Abandoned],
// and the pipeline goes on until go-redis's own timeouts at the latest. Nothing is sent if
// ctx has ended already.
func (e *Executor) Pipeline(ctx context.Context, requests []Request) []Result {
	abandoned := func() []Result {
		return slices.Repeat([]Result{{Outcome: Abandoned, Err: ctx.Err()}}, len(requests))
	}
	if ctx.Err() != nil {
		return abandoned()
	}
	answered := make(chan []Result, 1)
	defer e.Suspect()()
	e.underWay.Add()
	e.StartFunc(func() {
		defer e.underWay.Done()
		results := unanswered(len(requests)) // if a hook of the client's ends the goroutine
		defer func() { answered <- results }()
		results = e.SendAll(context.WithoutCancel(ctx), requests)
	})
	select {
	case results := <-answered:
		return results
	case <-ctx.Done():
		return abandoned()
	}
}

// unanswered returns the results of n requests whose sender has ended on the way.
func unanswered(n int) []Result {
	return slices.Repeat([]Result{{Outcome: Unknown, Err: ErrPanicked}}, n)
}

// SendAll is Pipeline for a caller that has nothing to leave for: it sends from the
// caller's goroutine, and blocks until go-redis has an answer or gives up. If a hook of the
// client's ends the goroutine, that is the caller's, which has to bear it. Scripts that the
// server does not know are sent again, in a second pipeline (see inFull). If replicas are to
// acknowledge one of the requests, it blocks for the request's ReplicaWait longer at most, and
// the requests for each server of a Cluster go out one server after the other.
func (e *Executor) SendAll(ctx context.Context, requests []Request) []Result {
	results := e.sendAll(ctx, requests)
	var split []Request
	var of []int
	for i, r := range requests {
		if r.isSplit(results[i].Err) {
			split, of = append(split, r.withoutSecond()), append(of, i)
		}
	}
	if len(split) > 0 {
		for i, r := range e.sendAll(ctx, split) {
			results[of[i]] = r
		}
	}
	return results
}

// batch is requests that are sent once each, in pipelines: all in one or, if replicas are to
// acknowledge some of them, those that go to one server.
type batch struct {
	executor   *Executor
	ctx        context.Context
	requests   []Request
	replicated bool // see replicas.go
	results    []Result
	next       map[destination][]int // indexes of the requests still to be sent, by destination
	sent       time.Time             // just before the first pipeline
}

// destination is where a pipeline goes.
type destination struct {
	node   *redis.Client // the server; nil for where the client sends it
	asking bool          // the server is importing the slot, and serves only those who say that they know
	inFull int           // how many of each script are sent in full, since the server does not know it
}

// maxAgain is how often what was sent to the wrong server, or called a script that the server does
// not know, is sent again: as often as go-redis follows a redirection by default. After that it is
// tried again like any request that is unavailable.
const maxAgain = 3

// sendAll is SendAll for requests of which each has the keys that it needs.
func (e *Executor) sendAll(ctx context.Context, requests []Request) []Result {
	b := &batch{
		executor: e, ctx: ctx, requests: requests, replicated: slices.ContainsFunc(requests, Request.isReplicated),
		results: make([]Result, len(requests)), next: map[destination][]int{}, sent: time.Now(),
	}
	for i := range requests {
		b.plan(i)
	}
	for try := 0; try <= maxAgain && len(b.next) > 0; try++ {
		now := b.next
		b.next = map[destination][]int{}
		for to, which := range now {
			b.send(to, which)
		}
	}
	for i := range b.results {
		b.results[i].Sent = b.sent
	}
	return b.results
}

func (b *batch) add(to destination, i int) { b.next[to] = append(b.next[to], i) }

// send sends requests in one pipeline, with a WAIT if they are replicated, and plans anew those that
// went to the wrong server, or whose script the server does not know.
func (b *batch) send(to destination, which []int) {
	commands, marks := make([]*command, len(which)), make([]*command, len(which))
	all := make([]redis.Cmder, 0, len(which)+1)
	add := func(r Request, full bool) *command {
		if to.asking {
			all = append(all, &command{Cmd: redis.NewCmd(b.ctx, "asking")})
		}
		c := newCommand(b.ctx, r, full)
		all = append(all, c)
		return c
	}
	full := b.executor.inFull(b.requests, which, to.inFull)
	for i, at := range which {
		commands[i] = add(b.requests[at], full[at])
		if mark := b.requests[at].Mark; b.replicated && mark != nil {
			marks[i] = add(*mark, true)
		}
	}
	var wait *waitCommand
	if b.replicated {
		wait = b.waitFor(which)
		all = append(all, wait)
	}
	client := b.executor.rdb
	if to.node != nil {
		client = to.node
	}
	failed := execOn(b.ctx, client, all)
	for i, at := range which {
		err := commands[i].outcome(failed)
		result := b.executor.refreshTopology(commands[i].classify(err))
		switch next, redirected := b.redirection(err, to); {
		case redirected:
			result = Result{Outcome: Unavailable, Err: fromServer(err)} // unless it is sent elsewhere
			if next.node != nil {
				b.add(next, at)
			}
		case b.requests[at].lacksScript(err) && !full[at]:
			b.add(destination{to.node, to.asking, max(moreInFull*to.inFull, 1)}, at)
		case b.replicated && result.Outcome == Done:
			result.Shortfall = cmp.Or(marks[i].shortfall(failed), wait.shortfall(b.requests[at].Replicas, commands[i].redirected, failed))
		}
		b.results[at] = result
	}
}

// execOn sends the commands to a client in one pipeline.
func execOn(ctx context.Context, client redis.UniversalClient, commands []redis.Cmder) (err error) {
	defer Contain(&err)
	pipe := client.Pipeline()
	for _, c := range commands {
		_ = pipe.Process(ctx, c) // only queues it
	}
	_, err = pipe.Exec(ctx)
	return err
}
