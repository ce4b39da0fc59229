package sluice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/store"
)

// Handler does the work of a task: see Worker.Handler.
type Handler func(ctx context.Context, e Entry) error

// Middleware returns a Handler that calls next, and does something before or after that: see Worker.Use. What becomes of a task
// is told by the hook TaskFinished; an error may also put it off, as Again does.
type Middleware func(next Handler) Handler

// around returns a handler with middleware around it, of which the first is outermost.
func around(handler Handler, use []Middleware) (Handler, error) {
	if handler == nil {
		return nil, fmt.Errorf("%w: nil Handler", ErrInvalid)
	}
	for _, middleware := range slices.Backward(use) {
		if middleware == nil {
			return nil, fmt.Errorf("%w: nil Middleware", ErrInvalid)
		}
		if handler = middleware(handler); handler == nil {
			return nil, fmt.Errorf("%w: a Middleware that returns no Handler", ErrInvalid)
		}
	}
	return handler, nil
}

// maxResult is the most bytes of a result.
const maxResult = 64 << 10

// RecordResult has data remembered as the result of the task that a Worker's handler works on, if it is finished,
// for the queue's WithRetention: TaskInfo.Result shows it. Of several calls the last counts. Without a retention
// data is dropped.
//
// It sends nothing by itself, and keeps a copy.
//
// ctx is the handler's, or one that descends from it, but not that of a KeepAlive in it. ErrInvalid: ctx is another, or the
// handler has returned, or the task is not its own any more (it was cancelled, or its lease is lost); or data has more than 64 KiB. A result is sent within
// a third of the lease, or again: over a slow link, keep results small and leases long.
func RecordResult(ctx context.Context, data []byte) error {
	switch {
	case len(data) > maxResult:
		return invalid("record result", fmt.Sprintf("a result of %d bytes, %d are allowed", len(data), maxResult))
	case ctx == nil || !lease.Record(ctx, string(data)):
		return invalid("record result", "no context of a handler that runs")
	}
	return nil
}

// Permanent marks an error as one that a further attempt will not mend. If a handler
// returns it, or an error that wraps it, its task is put among the dead letters at once.
// errors.Is and errors.As see through it. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// IsPermanent reports whether err was marked by Permanent, or wraps an error that was. A
// loop of one's own asks it before it gives a task back.
func IsPermanent(err error) bool {
	var permanent *permanentError
	return errors.As(err, &permanent)
}

// Again returns what a handler returns for a task that has not failed and is not done either: it is due again in d,
// by the server's clock, with its header and payload, and no attempt is used up.
//
// So a task may be put off any number of times, also on the last attempt that the queue allows: until a limit of
// requests has passed (HTTP 429), a lock is free, or a result is there.
//
// An error that wraps it, or joins it with others, means the same, with its own text in the log; joined with a
// Permanent one, Permanent wins. A version that was deferred meanwhile takes the task's place instead, at its
// own time. A negative d counts as 0, one longer than 100 years as that. The server adds d to its time when the
// result arrives there.
func Again(d time.Duration) error {
	return &againError{min(max(d, 0), store.LongestDuration)}
}

// againError is what Again returns.
type againError struct{ delay time.Duration }

func (e *againError) Error() string { return fmt.Sprintf("due again in %v", e.delay) }

// againIn returns after how long a task is due again whose handler has returned err, and whether that says so.
func againIn(err error) (d time.Duration, ok bool) {
	var again *againError
	if !errors.As(err, &again) || IsPermanent(err) {
		return 0, false
	}
	return again.delay, true
}

// RetryIn returns what a handler returns for a task that has failed with err, and is to be tried again in d,
// whatever Backoff says: what the header Retry-After of HTTP asks for, say.
//
// A negative d counts as 0, one longer than 100 years as that. On the last attempt, and joined with Permanent, the
// task is put among the dead letters; joined with Again, that counts. errors.Is and errors.As see through it.
// RetryIn(d, nil) is nil.
func RetryIn(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &retryInError{err, min(max(d, 0), store.LongestDuration)}
}

type retryInError struct {
	err   error
	delay time.Duration
}

func (e *retryInError) Error() string { return e.err.Error() }
func (e *retryInError) Unwrap() error { return e.err }
