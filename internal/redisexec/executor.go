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
	timers   sync.Pool // of *time.Timer, stopped: one for each request with an Until costs too much
	answers  sync.Pool // of chan struct{}, empty: for attempt.answered
	single   bool      // see isSingle
	lanes    lanes
	loads    loads
	// longestWait is how long replicas may be waited for, so that the client does not take the
	// connection for dead.
	longestWait time.Duration
}

// New returns an executor on rdb, which stays the caller's to close. It starts nothing.
func New(rdb redis.UniversalClient) *Executor {
	return &Executor{
		rdb: rdb, jobs: make(chan Job), closed: make(chan struct{}),
		single: isSingle(rdb), lanes: lanes{byKey: map[laneKey]*lane{}},
		loads: loads{underWay: map[load]chan struct{}{}}, longestWait: longestWait(rdb),
	}
}

// Request is a command, and how it may be handled.
type Request struct {
	// Script is the script that Args call by its digest; nil for a plain command.
	Script *Script
	// Args is the command as it is sent.
	Args []any
	// Retry says what may be done when a reply is lost.
	Retry RetryPolicy
	// Repeat, if set, returns the arguments with which the request is sent again after its reply
	// was lost, whatever Retry says: others, so that what is carried out late is told from it.
	Repeat func() []any
	// SecondIsSpare says that the script can do without its second key: where a slot of a Cluster
	// is on its way to another server, and each has some of the keys (TRYAGAIN), the request is
	// sent again without it. A third key then has its place, too.
	SecondIsSpare bool
	// Small says that the request may share a pipeline with others: it and its reply are short,
	// and it takes the server microseconds.
	Small bool
	// Replicas, if positive, is how many replicas are to acknowledge what the request writes,
	// and ReplicaWait for how long that is waited for, and a tick of the server more (100ms by
	// default). It is shorter for a client that waits less for a reply, and is halved until it ends
	// before the caller leaves: see AnsweredBy. The outcome does not depend on it; Shortfall says
	// whether they have.
	Replicas    int
	ReplicaWait time.Duration
	// Mark is a script that writes and changes nothing, if the request may find nothing to do: it
	// is run behind the request, so that the replicas have what was done before. See replicas.go.
	Mark *Request
	// Detached has the request sent even if its context has ended.
	Detached bool
	// Until, if set, is when the caller leaves, whether its context has ended or not.
	Until time.Time
	// Stop, if set, ends the request when it is closed, as the end of the context does.
	// The error is ErrStopped.
	Stop <-chan struct{}
	// Outage, if set, makes the request persistent: when it could not be sent, it is tried
	// again as if the server had said that it is unavailable.
	Outage *Outage
	// Bounded has each attempt that has had no reply for MaxQuiet count as Unknown, and one that
	// may be repeated sooner at first. It is for loops. There is no OnUnknown then: an attempt that
	// was left may end after another one was answered.
	Bounded bool
	// Arrived is since when the caller of a persistent request has waited; see
	// [Outage.Arrival].
	Arrived time.Time
	// OnUnknown, if set, is called when the request's effect may have come, or may
	// still come, after Run returned without a reply: at once, and again when the attempt that
	// the caller has left has ended.
	// It undoes what the request may have done without its caller knowing. over says that the
	// server has answered since, or was sent nothing: what is to come has come.
	OnUnknown func(over bool)

	first *Result // of an attempt that was made elsewhere, if not nil
}

// isReplicated reports whether replicas are to acknowledge the request.
func (r Request) isReplicated() bool { return r.Replicas > 0 }

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
			return reply, fail(r, &reply, result.Err, false)
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
		r.pause(ctx, try)
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

// pause is Pause, until Until at the most, or until Stop is closed.
func (r Request) pause(ctx context.Context, try int) {
	if !r.Until.IsZero() {
		bounded, cancel := context.WithDeadline(ctx, r.Until)
		defer cancel()
		ctx = bounded
	}
	pause(ctx, r.Stop, try)
}

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

// Pause waits before the next try (0 is the first), or until ctx ends: exponential
// backoff with full jitter.
func Pause(ctx context.Context, try int) { pause(ctx, nil, try) }

// pause is Pause, which the closing of stop ends too.
func pause(ctx context.Context, stop <-chan struct{}, try int) {
	timer := time.NewTimer(backoffLeast + backoff.Full(backoff.Exponential(backoffFirst, backoffLast, try)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-stop:
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
