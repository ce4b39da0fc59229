// Package redisexec is the one way to Redis. It sends a command once, retries it only
// where that is safe, returns when the caller's context ends, and says what became of
// the command: its [Outcome].
//
// go-redis does two things that a lock cannot live with. It repeats a command whose
// reply was lost, so that a script runs twice behind its caller's back; and it waits for
// the socket after the caller's context has ended. So each attempt here is marked as
// not to be repeated, and goes out from a goroutine that its caller can leave.
package redisexec

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/backoff"
)

const (
	// maxRepeats is how often a request that may be repeated is sent again after its
	// reply was lost.
	maxRepeats = 3
	// unavailableFor is how long a request is tried again while the server says that
	// it cannot serve it just now: it is loading, failing over or migrating.
	unavailableFor = 10 * time.Second

	backoffFirst = 8 * time.Millisecond
	backoffLast  = 500 * time.Millisecond
	// backoffLeast is added to each pause, so that none is zero.
	backoffLeast = time.Millisecond
)

// Executor sends requests to one Redis. It is safe for concurrent use.
//
// Its goroutines are the senders (see [Executor.Start]), each of which ends when it has
// had nothing to send for a moment, and those that the owner starts with
// [Executor.Go]. [Executor.Close] waits for both.
type Executor struct {
	rdb      redis.UniversalClient
	underWay background.Group // requests, those included whose caller has left; and Go's
	senders  background.Group
	jobs     chan Job // to a sender that is idle
	closed   chan struct{}
	timers   sync.Pool // of *time.Timer, stopped: one for each request with an Until costs too much
}

// New returns an executor on rdb, which stays the caller's to close. It starts nothing.
func New(rdb redis.UniversalClient) *Executor {
	return &Executor{rdb: rdb, jobs: make(chan Job), closed: make(chan struct{})}
}

// Request is a command, and how it may be handled.
type Request struct {
	// Script is the script that Args call by its digest; nil for a plain command.
	Script *Script
	// Args is the command as it is sent.
	Args []any
	// Retry says what may be done when a reply is lost.
	Retry RetryPolicy
	// Detached has the request sent even if its context has ended.
	Detached bool
	// Until, if set, is when the caller leaves, whether its context has ended or not.
	Until time.Time
	// OnUnknown, if set, is notified when the request's effect may have come, or may
	// still come, after Run returned without a reply: at once, or when the attempt that
	// the caller has left has ended; both, if there was an earlier attempt without a reply.
	OnUnknown UnknownHandler
}

// UnknownHandler undoes what a request may have done without its caller knowing.
type UnknownHandler interface{ OutcomeUnknown() }

// RetryPolicy says what may be done when the reply to a request is lost.
type RetryPolicy int

// The retry policies.
const (
	Never      RetryPolicy = iota // a lost reply is ErrUnknown
	Idempotent                    // it is sent again; the script's header says why that is safe
	ReadOnly                      // it is sent again, and changes nothing in any case
)

// Reply is what the server answered to a request.
type Reply struct {
	Value any
	// Sent is the time just before the attempt that was answered went out.
	Sent time.Time
	// Ambiguous says that an earlier attempt of the request stayed without a reply: it
	// may have been carried out before the one that was answered, or may yet be.
	Ambiguous bool
}

// Run carries out a request. It blocks until there is a reply, or a definite failure,
// or ctx ends (then for 15ms more, in which most replies come). It is the only retry
// loop of the library:
//
//	outcome      Never        Idempotent           ReadOnly
//	Done         the reply    the reply            the reply
//	Rejected     error        error*               error
//	Unavailable  try again, for unavailableFor at most, then as Rejected
//	NotSent      error        error*               error
//	Unknown      ErrUnknown   try again, then      try again, then
//	                          ErrUnknown           error
//	Abandoned    ErrUnknown   ErrUnknown           error
//
// *ErrUnknown instead, if the outcome of an earlier attempt is unknown.
func (e *Executor) Run(ctx context.Context, r Request) (Reply, error) {
	var reply Reply
	for start, try := time.Now(), 0; ; try++ {
		if err := ctx.Err(); err != nil && (!r.Detached || try > 0) {
			return reply, fail(r, &reply, err)
		}
		if try > 0 && r.isOver() {
			return reply, fail(r, &reply, errTooLate)
		}
		reply.Sent = time.Now()
		result := e.attempt(ctx, r)
		switch result.Outcome {
		case Done:
			reply.Value = result.Value
			return reply, nil
		case Abandoned:
			if !reply.Ambiguous {
				r.OnUnknown = nil // the attempt notifies it itself, once it has ended
			}
			reply.Ambiguous = true
			return reply, fail(r, &reply, result.Err)
		case Unknown:
			reply.Ambiguous = true
			if r.Retry == Never || try >= maxRepeats {
				return reply, fail(r, &reply, result.Err)
			}
		case Unavailable:
			if time.Since(start) > unavailableFor {
				return reply, fail(r, &reply, result.Err)
			}
		case Rejected, NotSent:
			return reply, fail(r, &reply, result.Err)
		}
		r.pause(ctx, try)
	}
}

// errTooLate is the error of a request that had no reply at its Until.
var errTooLate = errors.New("no reply in time")

func (r Request) isOver() bool { return !r.Until.IsZero() && !time.Now().Before(r.Until) }

// pause is Pause, until Until at the most.
func (r Request) pause(ctx context.Context, try int) {
	if !r.Until.IsZero() {
		bounded, cancel := context.WithDeadline(ctx, r.Until)
		defer cancel()
		ctx = bounded
	}
	Pause(ctx, try)
}

// fail returns the error of a request that ends without a reply.
func fail(r Request, reply *Reply, err error) error {
	if !reply.Ambiguous || r.Retry == ReadOnly {
		return err
	}
	if r.OnUnknown != nil {
		r.OnUnknown.OutcomeUnknown()
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

// Pause waits before the next try (0 is the first), or until ctx ends: exponential
// backoff with full jitter.
func Pause(ctx context.Context, try int) {
	backoff.Sleep(ctx, backoffLeast+backoff.Full(backoff.Exponential(backoffFirst, backoffLast, try)))
}

// Go runs f in a goroutine for which Close waits.
func (e *Executor) Go(f func()) { e.underWay.Go(f) }

// Close waits for what is under way, and for the goroutines to end, or until ctx ends.
// Requests made later are carried out all the same. It must be called once.
func (e *Executor) Close(ctx context.Context) {
	e.underWay.Wait(ctx)
	close(e.closed)
	e.senders.Wait(ctx)
}

// CommandTime returns the longest time that a client spends on a command.
func CommandTime(rdb redis.UniversalClient) time.Duration {
	read, write, pool := 5*time.Second, 5*time.Second, 6*time.Second // go-redis's defaults
	switch c := rdb.(type) {
	case interface{ Options() *redis.Options }:
		read, write, pool = c.Options().ReadTimeout, c.Options().WriteTimeout, c.Options().PoolTimeout
	case interface{ Options() *redis.ClusterOptions }:
		read, write, pool = c.Options().ReadTimeout, c.Options().WriteTimeout, c.Options().PoolTimeout
	}
	return max(read, 0) + max(write, 0) + max(pool, 0)
}

// ErrUnknown says that a command was sent and its reply lost, so that it may have been
// carried out or not.
var ErrUnknown = errors.New("outcome unknown")
