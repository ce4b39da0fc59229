package sluice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluice-go/sluice/internal/store"
)

// Claim leases up to n due tasks, earliest first: they are the caller's until the lease ends. The
// caller then says what becomes of each with Dequeue, Retry, Release or Bury. A task of which it
// says nothing is due again when its lease ends.
//
// n must be at least 1, and lease 1ms to 100 years, else ErrInvalid. To find nothing due is no
// error. KeepAlive keeps the lease while the caller works.
//
// Tasks that were claimed as often as WithMaxAttempts allows go to the dead letters
// instead, as do entries that are not the library's; fewer than n may be returned then.
// More than 250 tasks, or a megabyte of payload, are claimed in several steps; if one
// fails, the tasks claimed before are returned beside the error. Claim begins no step that
// might end after half of the lease, which leaves the caller the other half: again, fewer
// than n may be returned. No task is returned twice, or after its lease: those whose leases
// had ended before the replies came are given back, and the attempt does not count. That is
// tried for 5s in the background; Claim waits for it if it returns no task, for twice as long
// as a reply has taken at most. ErrLost says that the leases of all had ended: claim fewer, or
// for longer. After ErrUnknown tasks may be leased to no caller: they are due again when the
// lease ends.
//
// Calls of many goroutines on one Queue with the same lease at the same time are sent together,
// by one script; who has asked first is given the first tasks.
func (q *Queue) Claim(ctx context.Context, n int, lease time.Duration) ([]Entry, error) {
	if err := q.checkArgument("claim", cmp.Or(checkDuration("lease", lease), badUnless(n > 0, "n must be at least 1"))); err != nil {
		return nil, err
	}
	tasks, err := q.engine.Claim(ctx, n, lease)
	entries := entriesOf(tasks)
	q.noteClaimed(entries)
	return entries, wrap("claim", q.name, err)
}

// Pop takes up to n due tasks out of the queue, earliest first. A task is handed to one caller at
// most, and lost if that caller dies: use Claim where that matters. n must be at least 1, else
// ErrInvalid.
//
// More than 250, or a megabyte of payload, are taken in several steps; if one fails, the tasks
// taken before are returned beside the error. An ID that is enqueued between two steps may be
// returned again: it is a new task. After ErrUnknown up to n tasks may be lost.
func (q *Queue) Pop(ctx context.Context, n int) ([]Entry, error) {
	if err := q.checkArgument("pop", badUnless(n > 0, "n must be at least 1")); err != nil {
		return nil, err
	}
	tasks, err := q.engine.Pop(ctx, n)
	entries := entriesOf(tasks)
	q.noteClaimed(entries)
	return entries, wrap("pop", q.name, err)
}

// Peek reads up to n due tasks, earliest first. It changes nothing, and nothing keeps other callers
// from taking them: Dequeue reports whether one did. n must be at least 1, else ErrInvalid.
//
// It reads on past what Claim and Pop would set aside, so a queue that is only ever peeked at needs
// a Claim now and then.
//
// More than 250 tasks, or a megabyte of payload, are read in several steps. Each goes on
// behind the last task of the one before, whatever has come or gone meanwhile: no task that
// stays is missed or returned twice. If a step fails, the tasks read before are returned
// beside the error.
func (q *Queue) Peek(ctx context.Context, n int) ([]Entry, error) {
	if err := q.checkArgument("peek", badUnless(n > 0, "n must be at least 1")); err != nil {
		return nil, err
	}
	tasks, err := q.engine.Peek(ctx, n)
	return entriesOf(tasks), wrap("peek", q.name, err)
}

// Wait sleeps until a task may be due, and returns nil then. It ends when the queue's earliest task
// is due, when it is notified of an earlier one, and when a poll has found one.
//
// Redis is polled when a caller begins to wait, unless a Claim has just said when the earliest task
// is due, and once in each poll interval. Callers on the same client and queue share the polls, at
// the shortest interval that one of them asked for. If they find nothing, all queues of the client
// share them.
//
// It is a hint: another one may take the task first, so that Claim or Pop may find nothing, and
// the caller comes back. Of the callers on one Queue, as many return as there are tasks due, as
// far as is known, in the order in which they came. Of the clients that wait for one task the
// server tells one: it stands in line with the others, and Stats.Waiting counts them. A caller that
// returns and does not claim within 20ms has the next one told. If the client that was told has
// died, another one finds the task within a poll interval; within three if more than 100 clients
// wait, and most of them have died.
//
// If the earliest task is still the one that Wait has returned for before, because Claim fails for
// instance, Wait pauses before it returns for it again: for 1ms the first time, then twice as long
// each time, up to 100ms or the poll interval. For another task, it returns at once. So a loop
// around it never spins on a task that stays and that nothing takes. One that claims the task and
// releases it again does spin: Retry it.
//
// The error is ctx.Err() when ctx ends, or that of a poll that failed: the caller comes
// back after a pause.
func (q *Queue) Wait(ctx context.Context) error {
	return q.do("wait", func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return q.engine.Wait(ctx)
	})
}

// entryOf returns a task as it is handed out.
func entryOf(t store.Task) Entry {
	return Entry{
		ID: t.ID, Kind: t.Kind, Payload: t.Payload, Header: t.Header, Score: t.Score, Attempt: t.Attempt, Due: t.Due,
		Take: Take{Item: t.Take.Item, Units: t.Take.Units}, Group: t.Group, Expires: t.Expires,
	}
}

// withoutReceipt returns a task as a handler and its hooks get it, which do not settle it.
func withoutReceipt(t store.Task) Entry {
	e := entryOf(t)
	e.Score = 0
	return e
}

// entriesOf returns tasks as they are handed out; nil for none.
func entriesOf(ts []store.Task) []Entry {
	es := slices.Grow([]Entry(nil), len(ts))
	for _, t := range ts {
		es = append(es, entryOf(t))
	}
	return es
}

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
		if e.Group != "" || e.Take.Units > 0 { // perhaps another Queue has claimed it
			q.engine.Store.SetHolds()
		}
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
