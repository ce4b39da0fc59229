package sluice

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// Dequeue finishes (acknowledges) tasks: it removes each whose receipt is still good. Where Enqueue has
// deferred a new version, that one takes the task's place.
//
// An entry without a receipt is ErrInvalid: that of a Worker's handler, which finishes its task by returning nil, and
// that of a TaskInfo whose State is StateLeased. Nothing is sent then.
//
// A *StaleError (ErrStale) names the tasks whose receipt is not good: their lease ran out
// and they were handed to another worker, or they were cancelled or moved. The others were
// finished. ErrUnknown: each may or may not have been; calling again is safe, and a task
// that had been finished is stale then. Up to 250 are finished atomically at a time; after
// an error those of earlier steps have been, except those that a *StaleError beside it
// names.
//
// Calls of many goroutines on one Queue at the same time are sent together, by one script.
func (q *Queue) Dequeue(ctx context.Context, es ...Entry) error {
	return q.settle(ctx, "dequeue", store.Disposition{Action: store.Finish}, es...)
}

// Retry gives a task back whose attempt has failed, due again after delay; the attempt counts. The reason says why,
// in the words of an error: Get and List show the first 512 bytes of the last one, until the task has ended.
//
// Where a new version was deferred, that one takes its place instead, at its own time. ErrStale and ErrUnknown as
// for Dequeue.
//
// A task that has used up its attempts (see MaxAttempts) is put back too, and the next claim buries it, as "attempts used
// up": Bury it instead, with the reason.
func (q *Queue) Retry(ctx context.Context, e Entry, delay time.Duration, reason string) error {
	if err := checkDelay(delay); err != nil {
		return fmt.Errorf("sluice: retry: %w", err)
	}
	return q.settle(ctx, "retry", store.Disposition{Action: store.Retry, Delay: delay, Reason: cutReason(reason)}, e)
}

// Release gives tasks back that were not begun: they are due now, and the attempt does not
// count. Where a new version was deferred, that one takes its place. ErrStale and
// ErrUnknown as for Dequeue.
func (q *Queue) Release(ctx context.Context, es ...Entry) error {
	return q.settle(ctx, "release", store.Disposition{Action: store.Release}, es...)
}

// Bury puts a task among the dead letters, where it stays until it is Revived, Cancelled or enqueued again: there
// is no expiry, and no limit to their number, except with WithDeadAge and WithDeadLimit.
//
// Of the reason 512 bytes are kept; what is longer is cut at a character's end.
//
// Where Enqueue has deferred a new version, that one takes the task's place at its own
// time, and the old one is gone: an ID is in a queue once. ErrStale and ErrUnknown as for
// Dequeue. It works on a full server.
func (q *Queue) Bury(ctx context.Context, e Entry, reason string) error {
	return q.settle(ctx, "bury", store.Disposition{Action: store.Bury, Reason: cutReason(reason)}, e)
}

// settle ends leases: d says how.
func (q *Queue) settle(ctx context.Context, op string, d store.Disposition, es ...Entry) error {
	if err := q.check(op); err != nil {
		return err
	}
	items := make([]store.Item, len(es))
	for i, e := range es {
		if err := checkReceipt(e); err != nil {
			return fmt.Errorf("sluice: %s: %w", op, err)
		}
		items[i] = store.Item{ID: e.ID, Receipt: receiptOf(e), Disposition: d}
	}
	stale, failed := q.settleItems(ctx, items)
	return settleError(op, q.name, failed, stale)
}

// settleItems ends leases, all with the same disposition, and sorts out the answers.
func (q *Queue) settleItems(ctx context.Context, items []store.Item) (stale []string, failed error) {
	for part := range slices.Chunk(items, maxGroup) {
		reply, err := q.runSettle(ctx, part)
		var answers []store.Answer
		if err == nil {
			answers, err = decodeSettled(reply.Value, part)
		}
		if err != nil {
			return stale, err
		}
		for i, answer := range answers {
			switch {
			case answer.IsAccepted():
			case answer == store.Malformed:
				failed = ErrCorrupt
			case reply.Ambiguous:
				failed = errAmbiguousReceipt
			default:
				stale = append(stale, part[i].ID)
			}
		}
		if reply.Shortfall != nil {
			return stale, cmp.Or(failed, reply.Shortfall)
		}
	}
	return stale, failed
}

// runSettle ends the leases of a group. What finishes tasks may be a part of a larger group.
func (q *Queue) runSettle(ctx context.Context, items []store.Item) (redisexec.Reply, error) {
	if items[0].Disposition.Settler() != store.ByExchange {
		return q.executor.Run(ctx, q.store.Settle(items))
	}
	bytes := 0
	for _, i := range items {
		bytes += len(i.ID)
	}
	return runMerged(ctx, q, q.dequeues, items, len(items), bytes, q.store.Settle)
}

// decodeSettled decodes what a script says of the tasks whose leases it was to end, or returns a call's
// part of a group's reply.
func decodeSettled(value any, items []store.Item) ([]store.Answer, error) {
	if x, ok := value.(store.Exchanged[Entry]); ok {
		return x.Answers, nil
	}
	return store.DecodeReport(value, items)
}

// exchangedFor decodes the reply to a claim, or returns a call's part of a group's.
func exchangedFor(value any) (store.Exchanged[Entry], error) {
	if x, ok := value.(store.Exchanged[Entry]); ok {
		return x, nil
	}
	return store.DecodeExchange(value, 0, entryOf)
}

// commitDequeues sends a group of Dequeue calls, those with the same receipt together.
func (q *Queue) commitDequeues(calls []*mergedCall[[]store.Item]) {
	slices.SortStableFunc(calls, func(a, b *mergedCall[[]store.Item]) int {
		return strings.Compare(a.Arg[0].Receipt, b.Arg[0].Receipt)
	})
	items := make([]store.Item, 0, len(calls))
	for _, call := range calls {
		items = append(items, call.Arg...)
	}
	commitGroup(q, calls, q.store.Settle(items), func(result redisexec.Result, sent time.Time) {
		x, err := store.DecodeExchange(result.Value, len(items), entryOf)
		for _, call := range calls {
			m := mergedResult{result, sent} // a reply of another form is for each to reject
			if n := len(call.Arg); err == nil {
				m.Value, x.Answers = store.Exchanged[Entry]{Answers: x.Answers[:n:n]}, x.Answers[n:]
			}
			call.Settle(m)
		}
	})
}

// claiming returns the request that finishes tasks and claims up to n others. The client asks for a
// place in line with it.
func (q *Queue) claiming(finish []store.Item, n int, lease time.Duration, worker string) redisexec.Request {
	return q.store.Exchange(finish, store.Claim{N: n, Lease: lease, Worker: worker, Asking: q.watcher.Ask(n, worker != "")})
}

// settleError joins what failed with the tasks that were stale.
func settleError(op, name string, failed error, stale []string) error {
	switch {
	case stale == nil:
		return wrap(op, name, failed)
	case failed == nil:
		return wrap(op, name, &StaleError{IDs: stale})
	default:
		return wrap(op, name, fmt.Errorf("%w; %w", failed, &StaleError{IDs: stale}))
	}
}

// Extend gives a claimed task a new lease from now: it is the heartbeat of long work. The
// receipt stays as it is, so that e is good for the whole attempt, whatever becomes of an
// extension and of its reply.
//
// ErrStale: the task isn't the caller's any more, or it was never claimed, or its lease has run out and its place among
// Limits.Running is another's; stop working on it. ErrUnknown: the lease may have been extended; calling again is safe.
func (q *Queue) Extend(ctx context.Context, e Entry, lease time.Duration) error {
	return q.extend(ctx, "extend", e, lease)
}

// extend is Extend, as a part of an operation.
func (q *Queue) extend(ctx context.Context, op string, e Entry, lease time.Duration) error {
	if err := q.check(op); err != nil {
		return err
	}
	err := checkReceipt(e)
	if err == nil {
		err = checkDuration("lease", lease)
	}
	if err != nil {
		return fmt.Errorf("sluice: %s: %w", op, err)
	}
	value, err := q.byID(ctx, op, e.ID, func() redisexec.Request {
		return q.store.Extend(lease, store.Item{ID: e.ID, Receipt: receiptOf(e)})
	})
	if err != nil {
		return err
	}
	answers, err := store.DecodeExtended(value, 1)
	switch {
	case err != nil:
	case answers[0] == store.Malformed:
		err = ErrCorrupt
	case answers[0] != store.Accepted: // an extension does not use the receipt up: it was stale before
		err = ErrStale
	}
	return wrap(op, q.name, err)
}

func checkReceipt(e Entry) error {
	switch {
	case e.ID == "" || math.IsNaN(e.Score) || math.IsInf(e.Score, 0):
		return fmt.Errorf("%w: not an entry from the queue", ErrInvalid)
	case e.Score == 0 && e.Attempt > 0: // a task that was never claimed may be due at time 0
		return fmt.Errorf("%w: no receipt: a Worker settles what its handler gets, and a task that is shown as leased is its holder's (Cancel removes it)", ErrInvalid)
	}
	return nil
}

// receiptOf is an entry's score, as scripts are given it.
func receiptOf(e Entry) string { return store.ScoreText(e.Score) }
