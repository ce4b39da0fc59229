package sluice

import (
	"cmp"
	"context"
	"slices"
	"time"

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
		Take: Take{Item: t.Take.Item, Units: t.Take.Units},
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
