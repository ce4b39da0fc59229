package redisexec

import (
	"context"
	"time"
)

// A connection may go quiet: what is sent on it is lost, and no error says so. Then go-redis waits for its
// ReadTimeout, which may be long, or without end. A caller leaves when its context ends. A loop of the library
// has none that ends, and others wait for what it does; so its requests are Bounded, its pipelines go through
// BoundedPipeline, or it bounds the wait itself. The command that is left stays in its sender, and keeps its
// connection, until go-redis gives up or the kernel ends the connection.

const (
	// MaxQuiet is the longest that a loop waits for the reply to one attempt.
	MaxQuiet = 5 * time.Second
	// firstQuiet is the longest that it waits for that of a first attempt which is ReadOnly. Each further one has
	// twice as long: several connections may be quiet, or the server may be slow.
	firstQuiet = time.Second
	// mostHedges is how often Hedged sends at most, and leastHedge is after what time it sends again at the earliest.
	mostHedges = 8
	leastHedge = 100 * time.Millisecond
)

// BoundedPipeline is Pipeline for a loop: it returns after MaxQuiet at the latest.
func (e *Executor) BoundedPipeline(requests []Request) []Result {
	ctx, cancel := context.WithTimeout(context.Background(), MaxQuiet)
	defer cancel()
	results := e.Pipeline(ctx, requests)
	if ctx.Err() != nil {
		e.RefreshTopology()
	}
	return results
}

// Hedged is Once for a request that may run several times, and whose ctx has a deadline: it sends the request again, on another
// connection, each time that an eighth of ctx's time has passed without a reply, and returns the first reply. A pool may
// be full of connections that have gone quiet, and each that is met would cost all of ctx's time. (These are the hedged
// requests of Dean and Barroso, "The Tail at Scale".)
func (e *Executor) Hedged(ctx context.Context, r Request) Result {
	deadline, _ := ctx.Deadline()
	again := time.NewTicker(max(time.Until(deadline)/mostHedges, leastHedge))
	defer again.Stop()
	ctx, cancel := context.WithCancel(ctx) // those without a reply are left
	defer cancel()
	results := make(chan Result, mostHedges)
	send := func() { e.Go(func() { results <- e.Once(ctx, r) }) }
	send()
	for sent := 1; ; {
		select {
		case result := <-results:
			return result
		case <-again.C:
			if sent < mostHedges && ctx.Err() == nil {
				sent++
				send()
			}
		}
	}
}

// until returns when the caller leaves an attempt, 0 for the first; zero for never.
func (r *Request) until(try int) time.Time {
	if !r.Bounded {
		return r.Until
	}
	quiet := MaxQuiet
	if r.Retry == ReadOnly {
		quiet = min(firstQuiet<<min(try, maxRepeats), MaxQuiet)
	}
	until := time.Now().Add(quiet)
	if !r.Until.IsZero() && r.Until.Before(until) {
		return r.Until
	}
	return until
}
