package redisexec

import (
	"context"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
)

// A connection may go quiet: what is sent on it is lost, and no error says so. Then go-redis waits
// for its ReadTimeout, which may be long, or without end. A caller leaves when its context ends. A
// loop of the library has none that ends, and others wait for what it does; so its requests are
// Bounded, its pipelines go through BoundedPipeline, or it bounds the wait itself, and says there
// by what. The command that is left stays in its sender, and keeps its connection, until go-redis
// gives up or the kernel ends the connection.

const (
	// MaxQuiet is the longest that a loop waits for the reply to one attempt.
	MaxQuiet = 5 * time.Second
	// firstQuiet is the longest that it waits for that of a first attempt which may be repeated.
	// Each further one has twice as long, since the server may be slow. It is also after how long a
	// pool is suspected (see sweep.go).
	firstQuiet = time.Second
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

// until returns when the caller leaves an attempt, 0 for the first; zero for never.
func (r *Request) until(try int) time.Time {
	if !r.Bounded {
		return r.Until
	}
	quiet := MaxQuiet
	if r.Retry != Never {
		quiet = min(firstQuiet<<min(try, maxRepeats), MaxQuiet)
	}
	return backoff.Sooner(time.Now().Add(quiet), r.Until)
}
