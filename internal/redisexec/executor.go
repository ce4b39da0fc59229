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
	// it cannot serve it just now: it is loading, failing over or migrating. A persistent
	// request is tried again for as long when no server can be reached.
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
	timers   sync.Pool // of *time.Timer: one for each request with an Until costs too much
	answers  sync.Pool // of chan struct{}, empty: for attempt.answered
	single   bool      // the client talks to one server, as far as its type says
	lanes    lanes
	loads    sync.Map // of chan struct{}, by load: it is closed when the server has answered
	// longestWait is how long replicas may be waited for, so that the client does not take the
	// connection for dead.
	longestWait time.Duration
}

// New returns an executor on rdb, which stays the caller's to close. It starts nothing.
func New(rdb redis.UniversalClient) *Executor {
	_, single := rdb.(interface{ Options() *redis.Options })
	return &Executor{
		rdb: rdb, jobs: make(chan Job), closed: make(chan struct{}),
		timers:  sync.Pool{New: func() any { return time.NewTimer(time.Hour) }},
		answers: sync.Pool{New: func() any { return make(chan struct{}, 1) }},
		single:  single, lanes: lanes{byKey: map[laneKey]*lane{}}, longestWait: longestWait(rdb),
	}
}

// Reply is what the server answered to a request.
type Reply struct {
	Value any
	// Sent is the time just before the attempt that was answered went out.
	Sent time.Time
	// Shortfall is that of the attempt that was answered; see [Result].
	Shortfall error
	// Ambiguous says that an earlier attempt of the request stayed without a reply: it
	// may have been carried out before the one that was answered, or may yet be.
	Ambiguous bool
}

// Run carries out a request. It blocks until there is a reply, or a definite failure, or
// until ctx ends, Until comes or Stop is closed (then for 15ms more, in which most replies
// come). It is the only retry loop of the library:
//
//	outcome      Never        Idempotent           ReadOnly
//	Done         the reply    the reply            the reply
//	Rejected     error        error*               error
//	Unavailable  try again, for unavailableFor at most, then ErrUnavailable*
//	NotSent      ErrUnavailable*; if persistent, as Unavailable
//	  for good   error        error*               error
//	Unknown      ErrUnknown   try again, then      try again, then
//	                          ErrUnknown           error
//	  with Repeat try again, then ErrUnknown
//	Abandoned    ErrUnknown   ErrUnknown           error
//
// *ErrUnknown instead, if the outcome of an earlier attempt is unknown and the request is
// not ReadOnly. "For good" is what another try would not mend: a client that is closed, a
// wrong password. If ctx ends while a request is tried again, the error is ctx's, joined
// with the one that it would have been. So it is if ctx has ended when a first attempt comes
// back; that is ErrUnavailable where it cannot have been the end of ctx that kept it from
// being sent.
func (e *Executor) Run(ctx context.Context, r Request) (Reply, error) {
	var reply Reply
	var transient error // why it was not carried out so far, although it may be later
	for start, try := time.Now(), 0; ; try++ {
		var result Result
		if r.first != nil && try == 0 {
			result = *r.first
		} else if err := r.overBefore(ctx, try); err != nil {
			return reply, fail(r, &reply, join(err, transient), transient != nil)
		} else if err := r.Outage.over(r.Arrived); err != nil && try == 0 {
			return reply, fail(r, &reply, err, true)
		} else {
			r.ambiguous = reply.Ambiguous
			result = e.attempt(ctx, r, try)
			reply.Sent = result.Sent
		}
		switch {
		case result.Outcome == Done:
			r.Outage.End()
			reply.Value, reply.Shortfall = result.Value, result.Shortfall
			return reply, nil
		case result.Outcome == Abandoned:
			reply.Ambiguous = true
			return reply, fail(r, &reply, result.Err, false)
		case result.Outcome == Unknown:
			r.Outage.End()
			reply.Ambiguous = true
			if r.Retry == Never && r.Repeat == nil || try >= maxRepeats {
				return reply, fail(r, &reply, result.Err, false)
			}
			if r.Repeat != nil {
				r.Args = r.Repeat()
			}
		case !result.isTransient():
			r.Outage.End()
			return reply, fail(r, &reply, result.Err, result.isRefused())
		case r.ended(ctx) != nil && !r.Detached:
			// It may have been the end of ctx that kept it from being sent: then the attempt before
			// says what did.
			why, ended := result.Err, r.ended(ctx)
			if errors.Is(why, ended) && transient != nil {
				why = transient
			}
			return reply, fail(r, &reply, join(ended, why), transient != nil || result.isRefusal())
		case result.Outcome == NotSent && r.Outage == nil, time.Since(r.Outage.since(start, r.Arrived, result.Err)) > unavailableFor:
			return reply, fail(r, &reply, result.Err, true)
		default:
			transient = result.Err
		}
		r.Pause(ctx, try)
	}
}

// Resume is Run for a request of which a first attempt was made elsewhere: by Once, or as a
// part of another request. What Run would do after that attempt, Resume does.
func (e *Executor) Resume(ctx context.Context, r Request, first Result) (Reply, error) {
	r.first = &first
	return e.Run(ctx, r)
}

// overBefore returns why the next try, 0 for the first, is not to be made, or nil.
func (r Request) overBefore(ctx context.Context, try int) error {
	if err := r.ended(ctx); err != nil && (!r.Detached || try > 0) {
		return err
	}
	if try > 0 && !r.Until.IsZero() && !time.Now().Before(r.Until) {
		return errTooLate
	}
	return nil
}

// errTooLate is the error of a request that had no reply at its Until.
var errTooLate = errors.New("no reply in time")

// ended returns why the request is to be given up, or nil.
func (r Request) ended(ctx context.Context) error {
	if r.Stop != nil && background.IsClosed(r.Stop) {
		return ErrStopped
	}
	return ctx.Err()
}

// join adds to why a request ended what kept it from being carried out before, if
// anything did.
func join(end, cause error) error {
	if cause == nil || errors.Is(end, cause) { // it is named once
		return end
	}
	return fmt.Errorf("%w: %w", end, cause)
}

// fail returns the error of a request that ends without a reply.
func fail(r Request, reply *Reply, err error, unavailable bool) error {
	if !reply.Ambiguous || r.Retry == ReadOnly {
		if unavailable {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return err
	}
	if r.OnUnknown != nil {
		r.OnUnknown(false)
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

// Pause waits before the next try (0 is the first), until ctx ends or Stop is closed, or until Until
// at the most: exponential backoff with full jitter.
func (b Bounds) Pause(ctx context.Context, try int) {
	pause := backoffLeast + backoff.Full(backoff.Exponential(backoffFirst, backoffLast, try))
	if !b.Until.IsZero() {
		pause = min(pause, time.Until(b.Until))
	}
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	case <-b.Stop:
	}
}

// Go runs f in a goroutine. It ends with f, and Close waits for it.
func (e *Executor) Go(f func()) { e.underWay.Go(f) }

// Close waits for what is under way, and for the goroutines to end, or until ctx ends.
// Requests made later are carried out all the same. It must be called once.
func (e *Executor) Close(ctx context.Context) {
	e.underWay.Wait(ctx)
	close(e.closed)
	e.senders.Wait(ctx)
}

// longestWait returns how long a command may block on a client's connection.
func longestWait(rdb redis.UniversalClient) time.Duration {
	read := readTimeout(rdb)
	if read <= 0 { // the client waits for ever
		return time.Hour
	}
	return waitWithin(read)
}

// readTimeout returns go-redis's default for a client that does not say.
func readTimeout(rdb redis.UniversalClient) (read time.Duration) {
	read = 5 * time.Second
	var failed error
	defer Contain(&failed)
	switch c := rdb.(type) {
	case interface{ Options() *redis.Options }:
		return c.Options().ReadTimeout
	case interface{ Options() *redis.ClusterOptions }:
		return c.Options().ReadTimeout
	}
	return read
}

var (
	// ErrUnknown says that a command was sent and its reply lost, so that it may have been
	// carried out or not.
	ErrUnknown = errors.New("outcome unknown")
	// ErrUnavailable says that nothing was carried out, because no server could be reached
	// or none could serve the request. It may work later.
	ErrUnavailable = errors.New("server unavailable")
	// ErrStopped is the error of a request whose Stop was closed.
	ErrStopped = errors.New("stopped")
	// ErrPanicked says that the client, or one of its hooks, panicked.
	ErrPanicked = errors.New("the Redis client panicked")
)
