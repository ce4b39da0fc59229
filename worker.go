package sluice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

const (
	defaultConcurrency = 16
	defaultLease       = 30 * time.Second
	defaultGrace       = 10 * time.Second

	// lastMoment is how long Run still waits when Grace is over and the handlers'
	// contexts have ended.
	lastMoment = time.Second

	backoffFirst = time.Second
	backoffLast  = time.Hour
)

// Worker hands the tasks of a queue to a function, as they become due. It is used
// as an http.Server is: fill in the fields, and Run. It must not be copied, and
// what is changed while it runs has no effect.
//
// A task is handed out at least once: again after an error, and when its lease has
// ended without a word, because its process died for instance. So a handler has to
// bear to be run twice for one task. Never will it be run early, by the server's
// clock. How often a task may be handed out is its queue's: see WithMaxAttempts.
//
// A worker does what its caller could do with Wait, Claim, Extend, Dequeue, Retry,
// Release and Bury, but in groups: while an exchange with Redis is under way,
// whatever happens is gathered for the next. A busy worker so sends a fraction of a
// command per task, and an idle one asks once per poll interval (see
// WithPollInterval). It uses up to four connections of the queue's client at once
// (two exchanges, extensions, a look), one for pub/sub and, when Redis does not
// answer, one for each exchange that it has given up, until the client's own timeout.
type Worker struct {
	// Queue is where the tasks come from. Required.
	Queue *Queue

	// Handler does a task's work. Required. What it returns decides: nil finishes
	// the task; an error gives it back, to be due again after Backoff; Permanent,
	// or any error on the last attempt that the queue allows, puts it among the
	// dead letters with the error's text as the reason. Panics and runtime.Goexit
	// are errors.
	//
	// ctx has the values of Run's and does not end with it. It ends, by
	// context.Cause, with ErrLost when the lease is lost, before it can end on the
	// server: somebody else may have the task then, and what the handler returns
	// makes no difference. With context.DeadlineExceeded after Timeout. With
	// context.Canceled when the worker is to stop and Grace is over: an error that
	// is returned then, unless Permanent or a panic, gives the task back as if it
	// had not been begun. And when the handler has returned.
	//
	// e is the task as it was claimed. Its lease is extended for as long as the
	// handler runs, so that its Score is no receipt after a while: nothing is to be
	// done with it on the queue. (Enqueue with the same ID is fine: the new version
	// waits until the handler has returned; see Deferred.)
	Handler func(ctx context.Context, e Entry) error

	// Concurrency is how many handlers may run at once. With 8 or more, tasks are
	// claimed in two halves. Defaults to 16.
	Concurrency int

	// Lease is for how long a task is claimed. It is extended at a third of it
	// while the handler runs, so it bounds how long a crash delays a task, not how
	// long the work takes. Results are told to Redis until it ends. At least 1ms.
	// Defaults to 30s.
	Lease time.Duration

	// Timeout bounds the work on one task: its ctx ends then. Defaults to 0: no
	// limit, so that a handler which hangs keeps its task for ever.
	Timeout time.Duration

	// Backoff is how long a task waits after its attempt-th attempt (1 for the
	// first) has failed with err. It is called by several goroutines at once. What
	// is negative counts as 0, what is longer than 100 years as that; if it panics,
	// the default is used. Defaults to a random time up to 1s after the first
	// attempt, 2s after the second and so on, doubling, up to 1h.
	Backoff func(attempt int, err error) time.Duration

	// Grace is how long handlers may go on when Run's ctx has ended, before theirs
	// does. Defaults to 10s.
	Grace time.Duration

	// Logger gets a warning when Redis fails and a message when it is back, once
	// per outage; a warning for each task buried or lost; a message for each failed
	// attempt; an error with the stack for each panic. They hold task IDs and the
	// first 512 bytes of errors, and no payloads. Defaults to none.
	Logger *slog.Logger

	working atomic.Bool
	counts  counts
}

// WorkerStats is what a worker has done since it was made, and is doing.
type WorkerStats struct {
	// Running is how many handlers are running.
	Running int64
	// Done is how many tasks were finished.
	Done int64
	// Retried is how many attempts failed and are to be repeated.
	Retried int64
	// Buried is how many tasks were put among the dead letters, not counting those
	// that were claimed too often before they came to this worker.
	Buried int64
	// Released is how many tasks were given back because the worker stopped.
	Released int64
	// Lost is how many leases were lost before the handler's result was accepted:
	// the work may be done twice.
	Lost int64
}

type counts struct {
	running                               atomic.Int64
	done, retried, buried, released, lost atomic.Int64
}

// UnfinishedError is what Run returns when it gave up waiting. What it counts is
// due again when its lease ends.
type UnfinishedError struct {
	// Running is how many handlers had not returned.
	Running int
	// Untold is how many results Redis had not acknowledged.
	Untold int
	// Claims is how many claims it had not answered. What they may yet bring has cost
	// an attempt.
	Claims int
}

func (e *UnfinishedError) Error() string {
	return fmt.Sprintf("stopped with %d handlers still running, %d results not acknowledged and %d claims not answered",
		e.Running, e.Untold, e.Claims)
}

// Permanent marks an error as one that a further attempt will not mend: a handler
// that returns it, or an error that wraps it, has its task put among the dead
// letters at once. errors.Is and errors.As see through it. Of nil it makes nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Run works until ctx ends, and then stops: nothing is claimed any more; what was
// claimed and not begun is given back, its attempt not counted; handlers that run
// have Grace to return, then their contexts end, and they have a second more.
//
// It returns nil when all handlers have returned and Redis knows of it. Otherwise
// it returns an *UnfinishedError after Grace and that second. The leases of handlers
// that still run then are left to run out: their tasks will be handed out again, and
// what they return has no effect.
//
// Redis failing does not end it: claims and results are tried again with growing
// pauses of up to a second, results until their leases end. A field that cannot be,
// a nil Queue or Handler, or a worker that is running already is ErrInvalid at
// once. Run may be called again when it has returned and so have all handlers.
func (w *Worker) Run(ctx context.Context) error {
	if w == nil {
		return invalid("run", "nil Worker")
	}
	if err := w.Queue.check("run", ctx); err != nil {
		return err
	}
	s, err := newShift(ctx, w)
	if err != nil {
		return fmt.Errorf("sluice: run: %w", err)
	}
	if !w.working.CompareAndSwap(false, true) {
		return invalid("run", "the worker is running already")
	}
	defer w.working.Store(false)
	if w.counts.running.Load() > 0 {
		return invalid("run", "handlers of an earlier Run have not returned")
	}
	return wrap("run", w.Queue.name, s.run())
}

// Stats returns the worker's counters. They need not be of one moment.
func (w *Worker) Stats() WorkerStats {
	c := &w.counts
	return WorkerStats{
		Running: c.running.Load(), Done: c.done.Load(), Retried: c.retried.Load(),
		Buried: c.buried.Load(), Released: c.released.Load(), Lost: c.lost.Load(),
	}
}

// settings are a worker's fields, defaults filled in.
type settings struct {
	handler     func(ctx context.Context, e Entry) error
	concurrency int
	lease       time.Duration
	timeout     time.Duration // 0 for none
	backoff     func(attempt int, err error) time.Duration
	grace       time.Duration
	log         *slog.Logger
}

func (w *Worker) settings() (settings, error) {
	s := settings{
		handler: w.Handler, backoff: w.Backoff, timeout: w.Timeout, log: w.Logger,
		concurrency: orDefault(w.Concurrency, defaultConcurrency),
		lease:       orDefault(w.Lease, defaultLease),
		grace:       orDefault(w.Grace, defaultGrace),
	}
	if s.backoff == nil {
		s.backoff = fullJitter
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	switch {
	case s.handler == nil:
		return s, fmt.Errorf("%w: nil Handler", ErrInvalid)
	case s.concurrency < 0:
		return s, fmt.Errorf("%w: negative Concurrency", ErrInvalid)
	case s.timeout < 0 || s.timeout > longest:
		return s, fmt.Errorf("%w: Timeout must be 0 to 100 years", ErrInvalid)
	case s.grace < 0 || s.grace > longest:
		return s, fmt.Errorf("%w: Grace must be 0 to 100 years", ErrInvalid)
	}
	return s, checkDuration("Lease", s.lease)
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// fullJitter is the default Backoff. The jitter is full so that tasks which failed
// together do not come back together.
func fullJitter(attempt int, _ error) time.Duration {
	most := min(backoffFirst<<min(max(attempt-1, 0), 20), backoffLast)
	return rand.N(most + 1)
}

// isPermanent says whether a handler gave up.
func isPermanent(err error) bool {
	var permanent *permanentError
	return errors.As(err, &permanent)
}
