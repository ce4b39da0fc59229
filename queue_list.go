package sluice

import (
	"context"
	"iter"
	"math"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/store"
)

// List lists up to n tasks in a state: StateScheduled, StateDue, StateLeased, StateDead or StateDone. It changes
// nothing. Tasks come in the order of their due times, ends of leases, deaths or ends and, of those with the same,
// of their IDs.
//
// The zero TaskInfo as after begins with the first one; one that an earlier List of that state has returned goes on
// behind it, and may be gone. So after a page that is shorter than n there is nothing more, and a task that stays
// in the state, with its time, is listed once, whatever comes or goes between two pages. One whose lease is
// extended meanwhile may be listed again.
//
// What the library has not written is left out, except of the dead letters, as is a version that waits behind a lease
// that has run out: the next Claim puts it where it belongs.
//
// Opts say which payloads are read. More than 250, or a megabyte of what is read, take several steps, and of the
// scheduled ones each thousand leased ones that are due between them are a step. If one fails, the tasks read before are
// returned beside the error. ErrInvalid: n is less than 1, the state is none of these, or after is not of its list.
func (q *Queue) List(ctx context.Context, s State, after TaskInfo, n int, opts ...ReadOption) (listed []TaskInfo, err error) {
	if err := q.checkCount("list", n); err != nil {
		return nil, err
	}
	for t, failed := range q.listed(ctx, "list", s, after, n, opts) {
		if failed != nil {
			return listed, failed
		}
		listed = append(listed, t)
	}
	return listed, nil
}

// All returns the tasks in a state, in the order of List, to range over with both variables:
//
//	for task, err := range queue.All(ctx, sluice.StateDead) {
//
// It reads them as the loop goes on, about 250 at a time, until ctx ends; what it has read
// before still comes. The loop may change the queue, also the tasks that it gets. If reading fails, the loop gets the error
// beside a zero TaskInfo, and ends: ErrInvalid for a state that List does not list.
func (q *Queue) All(ctx context.Context, s State, opts ...ReadOption) iter.Seq2[TaskInfo, error] {
	return q.listed(ctx, "all", s, TaskInfo{}, math.MaxInt, opts)
}

// listed returns the first n tasks in a state behind one, and the error that ends them.
func (q *Queue) listed(ctx context.Context, op string, s State, after TaskInfo, n int, opts []ReadOption) iter.Seq2[TaskInfo, error] {
	return func(yield func(TaskInfo, error) bool) {
		payloads, err := q.checkList(op, s, after, opts)
		if err == nil {
			for i, failed := range q.list(ctx, store.State(s), cursorOf(s, after), n, payloads) {
				if failed != nil {
					err = wrap(op, q.name, failed)
					break
				}
				if !yield(infoOf(i), nil) {
					return
				}
			}
		}
		if err != nil {
			yield(TaskInfo{}, err)
		}
	}
}

// checkList checks the arguments of an operation that lists. It returns what readPayloads does.
func (q *Queue) checkList(op string, s State, after TaskInfo, opts []ReadOption) (store.Payloads, error) {
	if err := q.check(op); err != nil {
		return 0, err
	}
	if s <= StateAbsent || s > StateDone {
		return 0, invalid(op, "no state to list")
	}
	isOfAnother := after.State != StateAbsent && after.State != s
	if isOfAnother || math.IsNaN(after.Score) || s == StateLeased && after.ID != "" && after.LeaseEnds.IsZero() {
		return 0, invalid(op, "after is not a task of the list")
	}
	return readPayloads(op, opts)
}

// ReadOption says what Get, List and All read of a task's payload and header. Defaults to all.
type ReadOption func(*readOptions)

type readOptions struct {
	most store.Payloads
}

// WithoutPayloads leaves Payload, Header and Kind empty. They stay on the server, which does not read them either:
// a list of tasks with large payloads is as cheap as one of tasks without.
//
// The results of tasks that are done are left out, too, but read.
func WithoutPayloads() ReadOption { return func(o *readOptions) { o.most = 0 } }

// WithPayloadsUpTo leaves Payload, Header and Kind empty of a task for which they are stored in more than n bytes. TaskInfo.Omitted
// says in how many. The server reads them, but does not send them. At least 1.
func WithPayloadsUpTo(n int) ReadOption {
	return func(o *readOptions) {
		if o.most = store.Payloads(n); n < 1 {
			o.most = math.MinInt // out of range: WithoutPayloads is for 0
		}
	}
}

// readPayloads returns up to how many bytes of a payload are shown.
func readPayloads(op string, opts []ReadOption) (store.Payloads, error) {
	o := readOptions{most: store.AllPayloads}
	for _, opt := range opts {
		if opt == nil {
			return 0, invalid(op, "nil option")
		}
		opt(&o)
	}
	if o.most < store.AllPayloads {
		return 0, invalid(op, "payloads up to less than one byte")
	}
	return o.most, nil
}

// cursorOf returns where a list of tasks in a state goes on behind t. The zero TaskInfo is its beginning.
func cursorOf(s State, t TaskInfo) store.Cursor {
	score := t.Score
	if s == StateLeased && t.ID != "" {
		score = store.ScoreOf(t.LeaseEnds)
	}
	switch {
	case t.ID == "" && score == 0:
		return store.Cursor{}
	case math.IsInf(score, 0): // a foreign client's
		return store.Cursor{Score: strings.TrimPrefix(strings.ToLower(store.ScoreText(score)), "+"), ID: t.ID} // as servers print it
	}
	return store.Cursor{Score: store.ScoreText(score), ID: t.ID}
}

// list returns the first n tasks of a list behind one, and the error that ends them. It reads them page by page, as they
// are taken.
func (q *Queue) list(ctx context.Context, s store.State, after store.Cursor, n int, p store.Payloads) iter.Seq2[store.Info, error] {
	return func(yield func(store.Info, error) bool) {
		for left := n; left > 0; {
			reply, err := q.executor.Run(ctx, q.store.List(s, after, min(left, maxGroup), p))
			var page []store.Info
			if err == nil {
				after, page, err = store.DecodeListed(s, reply.Value)
			}
			if err != nil {
				yield(store.Info{}, err)
				return
			}
			for _, i := range page {
				if !yield(i, nil) {
					return
				}
			}
			if left -= len(page); after == (store.Cursor{}) {
				return
			}
		}
	}
}

// entryOf returns a task as it is handed out.
func entryOf(t store.Task) Entry {
	return Entry{ID: t.ID, Kind: t.Kind, Payload: t.Payload, Header: t.Header, Score: t.Score, Attempt: t.Attempt, Due: store.TimeOf(t.Due)}
}

// withoutReceipt returns a task as a handler and its hooks get it, which do not settle it.
func withoutReceipt(t store.Task) Entry {
	e := entryOf(t)
	e.Score = 0
	return e
}

// infoOf returns a task as it is shown.
func infoOf(i store.Info) TaskInfo {
	t := TaskInfo{Entry: entryOf(i.Task), State: State(i.State), Reason: i.Reason, Worker: i.Worker, Omitted: i.Omitted}
	if i.FailedAt != 0 {
		t.FailedAt = store.TimeOf(i.FailedAt)
	}
	if i.LeasedSince != 0 {
		t.LeasedSince = store.TimeOf(i.LeasedSince)
	}
	switch t.Due = (time.Time{}); t.State {
	case StateLeased:
		t.LeaseEnds, t.Score = store.ExactTimeOf(i.Score), 0
	case StateDead:
		t.DiedAt = store.TimeOf(i.Score)
	case StateDone:
		t.DoneAt, t.Result = store.TimeOf(i.Score), i.Result
	default:
		t.Due = store.TimeOf(i.Score)
	}
	return t
}
