package sluice

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluice-go/sluice/internal/store"
)

// Dequeue finishes (acknowledges) tasks: it removes each whose receipt is still good. Where Enqueue
// has deferred a new version, that one takes the task's place.
//
// An entry without a receipt is ErrInvalid: that of a Worker's handler, which finishes its task by
// returning nil, and that of a TaskInfo whose State is StateLeased. Nothing is sent then.
//
// A *StaleError (ErrStale) names the tasks whose receipt is not good: their lease ran out
// and they were handed to another worker, or they were cancelled or moved. The others were
// finished. ErrUnknown: each may or may not have been; calling again is safe, and a task
// that had been finished is stale then. Up to 250 are finished atomically at a time; after
// an error those of earlier steps have been, except those that a *StaleError beside it
// names. Without entries it does nothing and returns nil.
//
// Calls of many goroutines on one Queue at the same time are sent together, by one script.
func (q *Queue) Dequeue(ctx context.Context, es ...Entry) error {
	return q.settle(ctx, "dequeue", store.Disposition{Action: store.Finish}, es...)
}

// Retry gives tasks back whose attempts have failed, due again after delay; the attempt counts. A
// negative delay means at once; one of more than 100 years is ErrInvalid. The reason says why, in
// the words of an error: Get and List show the first 512 bytes of the last one, until the task has
// ended.
//
// Where a new version was deferred, that one takes its place instead, at its own time. ErrStale,
// ErrUnknown and the steps are as for Dequeue. Without entries it does nothing and returns nil.
//
// A task that has used up its attempts (see MaxAttempts) is put back too, and the next claim buries
// it, as "attempts used up": Bury it instead, with the reason.
func (q *Queue) Retry(ctx context.Context, delay time.Duration, reason string, es ...Entry) error {
	if err := q.checkArgument("retry", checkDelay("delay", delay)); err != nil {
		return err
	}
	return q.settle(ctx, "retry", store.Disposition{Action: store.Retry, Delay: max(delay, 0), Reason: cutReason(reason)}, es...)
}

// Release gives tasks back that were not begun: they are due now, and the attempt does not
// count. Where a new version was deferred, that one takes its place. ErrStale, ErrUnknown and
// the steps are as for Dequeue. Without entries it does nothing and returns nil.
func (q *Queue) Release(ctx context.Context, es ...Entry) error {
	return q.settle(ctx, "release", store.Disposition{Action: store.Release}, es...)
}

// Bury puts tasks among the dead letters, where they stay until Revive, Cancel, Drop or Purge, or
// until the ID is enqueued again: there is no expiry, and no limit to their number, except with
// WithDeadAge and WithDeadLimit.
//
// Of the reason 512 bytes are kept; what is longer is cut at a character's end.
//
// Where Enqueue has deferred a new version, that one takes the task's place at its own
// time, and the old one is gone: an ID is in a queue once. ErrStale, ErrUnknown and the steps are
// as for Dequeue. Without entries it does nothing and returns nil. It works on a full server.
func (q *Queue) Bury(ctx context.Context, reason string, es ...Entry) error {
	return q.settle(ctx, "bury", store.Disposition{Action: store.Bury, Reason: cutReason(reason)}, es...)
}

// settle ends leases: d says how.
func (q *Queue) settle(ctx context.Context, op string, d store.Disposition, es ...Entry) error {
	if err := q.check(op); err != nil {
		return err
	}
	items := make([]store.Item, len(es))
	for i, e := range es {
		var err error
		if items[i], err = itemOf(e); err != nil {
			return wrap(op, q.name, fmt.Errorf("es[%d]: %w", i, err))
		}
		items[i].Disposition = d
	}
	stale, failed := q.engine.Settle(ctx, items)
	switch {
	case stale == nil:
	case failed == nil:
		failed = &StaleError{IDs: stale}
	default:
		failed = fmt.Errorf("%w; %w", failed, &StaleError{IDs: stale})
	}
	return wrap(op, q.name, failed)
}

// Extend extends the lease of a claimed task: it lasts at least lease from now, and is never made
// shorter. lease is 1ms to 100 years, else ErrInvalid. The receipt stays as it is, so that e is
// good for the whole attempt, whatever becomes of an extension and of its reply.
//
// ErrStale: the task isn't the caller's any more, or it was never claimed, or its lease has run out
// and its place among Limits.Running is another's; stop working on it. ErrUnknown: the lease may
// have been extended; calling again is safe.
func (q *Queue) Extend(ctx context.Context, e Entry, lease time.Duration) error {
	item, err := q.checkExtension("extend", e, lease)
	if err != nil {
		return err
	}
	return wrap("extend", q.name, q.engine.Extend(ctx, item, lease))
}

// KeepAlive runs fn, the work on a claimed task, and keeps the task the caller's meanwhile: it
// extends the lease at once, and then at a third of it until fn returns, together with the leases
// of other callers on this Queue.
//
// It is what a Worker does for its handlers. The caller then says what became of the task, with
// Dequeue, Retry, Release or Bury; fn must not. lease is 1ms to 100 years, else ErrInvalid.
//
// The context that fn gets ends with ctx, and by itself when the task is not the caller's
// any more: with the cause ErrLost before the lease can end on the server, or with
// ErrCanceled when the task was cancelled. KeepAlive then joins that cause to fn's error.
// Otherwise it returns fn's error as it is.
//
// If the first extension fails, fn is not called: ErrStale if the task is not the caller's, as when
// its lease ended before, or e was read by Peek or Get and never claimed; ErrLost if the reply came
// too late; what Extend returns else. KeepAlive does not end before fn does. It leaves nothing
// behind, except an extension under way: one that comes to the server after the caller's word on
// the task is stale.
func (q *Queue) KeepAlive(ctx context.Context, e Entry, lease time.Duration, fn func(ctx context.Context) error) error {
	if err := q.checkArgument("keep alive", badUnless(fn != nil, "fn is nil")); err != nil {
		return err
	}
	item, err := q.checkExtension("keep alive", e, lease)
	if err != nil {
		return err
	}
	held, end, err := q.engine.Keep(ctx, item, lease)
	if err != nil {
		return wrap("keep alive", q.name, err)
	}
	return callKept(func() error { return fn(held) }, func() error { return wrap("keep alive", q.name, end()) })
}

// callKept calls work, and end when that has returned or panicked. It joins their errors.
func callKept(work, end func() error) (err error) {
	defer func() {
		if lost := end(); lost != nil {
			err = errors.Join(err, lost)
		}
	}()
	return work()
}

// checkExtension checks the arguments of an operation that extends leases. It returns the claimed
// task.
func (q *Queue) checkExtension(op string, e Entry, lease time.Duration) (item store.Item, err error) {
	if err := q.check(op); err != nil {
		return item, err
	}
	if item, err = itemOf(e); err == nil {
		err = checkDuration("lease", lease)
	}
	return item, wrap(op, q.name, err)
}

// itemOf returns a claimed task as scripts are told of it, or what is wrong with its receipt.
func itemOf(e Entry) (i store.Item, err error) {
	switch {
	case e.ID == "" || math.IsNaN(e.Score) || math.IsInf(e.Score, 0):
		return i, fmt.Errorf("%w: the Entry is not from a queue", ErrInvalid)
	case e.Score == 0 && e.Attempt > 0: // a task that was never claimed may be due at time 0
		return i, fmt.Errorf("%w: the Entry has no receipt: a Worker settles what its handler gets, and a task that is shown as leased is its holder's (Cancel removes it)", ErrInvalid)
	}
	return store.Item{ID: e.ID, Receipt: store.ScoreText(e.Score)}, nil
}

// maxReason is the most bytes of a reason that are kept.
const maxReason = 512

// cutReason shortens s to maxReason bytes, and to the end of a character. What is no UTF-8 is
// replaced.
func cutReason(s string) string {
	s = strings.ToValidUTF8(s[:min(len(s), maxReason+utf8.UTFMax)], "\ufffd")
	if len(s) <= maxReason {
		return s
	}
	end := maxReason
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}
