package redisexec

import (
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
	if ctx.Err() != nil {
		return abandoned(ctx, len(requests))
	}
	p := &pipeline{executor: e, ctx: context.WithoutCancel(ctx), requests: requests, answered: make(chan []Result, 1)}
	defer e.Suspect()()
	e.underWay.Add()
	e.Start(p)
	select {
	case results := <-p.answered:
		return results
	case <-ctx.Done():
		return abandoned(ctx, len(requests))
	}
}

// abandoned returns the results of n requests whose caller has left.
func abandoned(ctx context.Context, n int) []Result {
	results := make([]Result, n)
	for i := range results {
		results[i] = Result{Outcome: Abandoned, Err: ctx.Err()}
	}
	return results
}

// pipeline is a Job.
type pipeline struct {
	executor *Executor
	ctx      context.Context
	requests []Request
	answered chan []Result // cap 1
}

// Run sends the pipeline. If a hook of the client's ends the goroutine, all outcomes are unknown.
func (p *pipeline) Run() {
	defer p.executor.underWay.Done()
	results := unanswered(len(p.requests))
	defer func() { p.answered <- results }()
	results = p.executor.SendAll(p.ctx, p.requests)
}

// unanswered returns the results of n requests whose sender has ended on the way.
func unanswered(n int) []Result {
	results := make([]Result, n)
	for i := range results {
		results[i] = Result{Outcome: Unknown, Err: ErrPanicked}
	}
	return results
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

// sendAll is SendAll for requests of which each has the keys that it needs.
func (e *Executor) sendAll(ctx context.Context, requests []Request) []Result {
	if slices.ContainsFunc(requests, Request.isReplicated) {
		return e.sendReplicated(ctx, requests)
	}
	results := make([]Result, len(requests))
	which, sent := make([]int, len(requests)), time.Now()
	for i := range which {
		which[i] = i
	}
	which = e.sendSome(ctx, requests, which, results, 0)
	for full := 1; len(which) > 0; full *= moreInFull {
		which = e.sendSome(ctx, requests, which, results, full)
	}
	for i := range results {
		results[i].Sent = sent
	}
	return results
}

// sendSome sends those of the requests, and returns those that were not sent in full and whose
// script the server does not know.
func (e *Executor) sendSome(ctx context.Context, requests []Request, which []int, results []Result, inFull int) (unknown []int) {
	commands := make([]*command, len(which))
	all := make([]redis.Cmder, len(which))
	full := e.inFull(requests, which, inFull)
	for i, at := range which {
		commands[i] = newCommand(ctx, requests[at], full[at])
		all[i] = commands[i]
	}
	failed := execOn(ctx, e.rdb, all)
	for i, at := range which {
		err := commands[i].outcome(failed)
		if requests[at].isUnknown(err) && !full[at] {
			unknown = append(unknown, at)
		}
		results[at] = e.refreshTopology(commands[i].classify(err))
	}
	return unknown
}

// execOn sends the commands to a client in one pipeline.
func execOn(ctx context.Context, client pipeliner, commands []redis.Cmder) (err error) {
	defer Contain(&err)
	pipe := client.Pipeline()
	for _, c := range commands {
		_ = pipe.Process(ctx, c) // only queues it
	}
	_, err = pipe.Exec(ctx)
	return err
}
