package sluice

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/queues"
	"github.com/sluice-go/sluice/internal/store"
)

// List lists up to n tasks in a state: StateScheduled, StateDue, StateLeased, StateDead, StateDone
// or StateWaiting. It changes nothing. Tasks come in the order of their due times, ends of leases,
// deaths or ends and, of those with the same, of their IDs; those that wait, in the order of their
// groups first.
//
// The zero TaskInfo as after begins with the first one; one that an earlier List of that state has
// returned goes on behind it, and may be gone. So after a page that is shorter than n there is
// nothing more, and a task that stays in the state, with its time, is listed once, whatever comes
// or goes between two pages. One whose lease is extended meanwhile may be listed again.
//
// What the library has not written is left out, except of the dead letters, as is a version that
// waits behind a lease that has run out: the next Claim puts it where it belongs. Until then Stats
// counts it as due, and All returns it among the due ones, with its own Due, where the lease ended.
//
// Opts say which payloads are read. More than 250, or a megabyte of what is read, take several
// steps, and of the scheduled ones each thousand leased ones that are due between them are a step.
// If one fails, the tasks read before are returned beside the error. ErrInvalid: n is less than 1,
// the state is none of these, or after is not of its list.
func (q *Queue) List(ctx context.Context, s State, after TaskInfo, n int, opts ...ReadOption) ([]TaskInfo, error) {
	if err := q.checkArgument("list", badUnless(n > 0, "n must be at least 1")); err != nil {
		return nil, err
	}
	var listed []TaskInfo
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
// before still comes. The loop may change the queue, also the tasks that it gets. If reading fails,
// the loop gets the error beside a zero TaskInfo, and ends: ErrInvalid for a state that List does
// not list.
func (q *Queue) All(ctx context.Context, s State, opts ...ReadOption) iter.Seq2[TaskInfo, error] {
	return q.listed(ctx, "all", s, TaskInfo{}, math.MaxInt, opts)
}

// listed returns the first n tasks in a state behind one, and the error that ends them.
func (q *Queue) listed(ctx context.Context, op string, s State, after TaskInfo, n int, opts []ReadOption) iter.Seq2[TaskInfo, error] {
	return func(yield func(TaskInfo, error) bool) {
		l, err := checkList(s, after, opts)
		err = q.checkArgument(op, err)
		if err == nil {
			if op == "all" {
				l.Moves = "all" // its pages end where the server says, and not at a task's own place
			}
			for i, failed := range q.engine.List(ctx, l, cursorOf(s, after), n) {
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

// checkList checks the arguments of an operation that lists.
func checkList(s State, after TaskInfo, opts []ReadOption) (l store.Listing, err error) {
	if s <= StateAbsent || s > StateWaiting {
		return l, fmt.Errorf("%w: state: %v cannot be listed", ErrInvalid, s)
	}
	isOfAnother := after.State != StateAbsent && after.State != s
	if isOfAnother || math.IsNaN(after.Score) || s == StateLeased && after.ID != "" && after.LeaseEnds.IsZero() {
		return l, fmt.Errorf("%w: after is no task of that state's list", ErrInvalid)
	}
	o, err := readWith(opts)
	if err == nil && o.group != "" && s != StateWaiting {
		err = fmt.Errorf("%w: InGroup is for StateWaiting", ErrInvalid)
	}
	if err == nil && o.newest && s == StateWaiting {
		err = fmt.Errorf("%w: NewestFirst is not for StateWaiting", ErrInvalid)
	}
	return store.Listing{State: store.State(s), Payloads: o.most, Group: o.group, Newest: o.newest}, err
}

// ReadOption says what Get, List and All read of a task's payload and header. Defaults to all.
type ReadOption func(*readOptions)

type readOptions struct {
	most   store.Payloads
	group  string
	newest bool
}

// InGroup has List and All show the tasks of one group that wait. Defaults to all groups.
func InGroup(group string) ReadOption { return func(o *readOptions) { o.group = group } }

// NewestFirst has List and All begin at the end: with what died or was done last, or is due last. Get
// ignores it. ErrInvalid: it is not for StateWaiting. Defaults to the other order.
func NewestFirst() ReadOption { return func(o *readOptions) { o.newest = true } }

// WithoutPayloads leaves Payload, Header and Kind empty. They stay on the server, which does not
// read them either: a list of tasks with large payloads is as cheap as one of tasks without.
//
// The results of tasks that are done are left out, too, but read.
func WithoutPayloads() ReadOption { return func(o *readOptions) { o.most = 0 } }

// WithPayloadsUpTo leaves Payload, Header and Kind empty of a task for which they are stored in
// more than n bytes. TaskInfo.Omitted says in how many. The server reads them, but does not send
// them. Negative is no limit, and 0 as if it were not given: WithoutPayloads shows none.
func WithPayloadsUpTo(n int) ReadOption {
	return func(o *readOptions) {
		if n != 0 {
			o.most = store.Payloads(max(n, int(store.AllPayloads)))
		}
	}
}

// readWith returns what the options say.
func readWith(opts []ReadOption) (readOptions, error) {
	o := readOptions{most: store.AllPayloads}
	for _, opt := range opts {
		if opt == nil {
			return o, fmt.Errorf("%w: an option is nil", ErrInvalid)
		}
		opt(&o)
	}
	return o, nil
}

// cursorOf returns where a list of tasks in a state goes on behind t. The zero TaskInfo is its
// beginning.
func cursorOf(s State, t TaskInfo) store.Cursor {
	score := t.Score
	if s == StateLeased && t.ID != "" {
		score = store.ScoreOf(t.LeaseEnds)
	}
	switch {
	case t.ID == "" && score == 0:
		return store.Cursor{}
	case s == StateWaiting:
		return store.WaitingCursor(t.Group, score, t.ID)
	case math.IsInf(score, 0): // a foreign client's
		return store.Cursor{Score: strings.TrimPrefix(strings.ToLower(store.ScoreText(score)), "+"), ID: t.ID} // as servers print it
	}
	return store.Cursor{Score: store.ScoreText(score), ID: t.ID}
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

// Await waits until a task has ended, and returns it: as StateDone, with its Result, or StateDead, with
// the Reason. It is how the caller that has enqueued a task gets what its handler has recorded:
//
//	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
//	defer cancel()
//	task, err := queue.Await(ctx, id) // context.DeadlineExceeded: answer 202, and show it later
//
// ErrNotFound: there is no such task, or no longer: it was discarded, cancelled or taken by Pop, has
// expired, or was done for longer than WithRetention. A task that is enqueued again, or revived,
// before Await has seen the end is awaited on. One that was done before in the retention, and is
// enqueued again, discarded and gone before Await has looked once, is shown as it was done before.
//
// It polls. All calls on a Queue do so together, with one script for 250 tasks: at first each 20
// milliseconds, then after a twentieth of the time that a call has waited, up to half a second, and
// less often if they wait for more than 4,000 tasks. What a Worker on the same Queue ends is seen
// at once. So set WithRetention to more than a second.
//
// It returns when ctx ends, with its error; that is joined with the error of the last poll, if the
// server did not answer: Await does not end because of that. ErrInvalid: the Queue is without
// WithRetention.
func (q *Queue) Await(ctx context.Context, id string) (TaskInfo, error) {
	const op = "await"
	if err := q.checkArgument(op, badUnless(id != "", "id is empty")); err != nil {
		return TaskInfo{}, err
	}
	if !q.remembers() {
		return TaskInfo{}, wrap(op, q.name, fmt.Errorf("%w: the Queue is without WithRetention", ErrInvalid))
	}
	i, err := q.engine.Await(ctx, id)
	if err != nil {
		return TaskInfo{}, wrap(op, q.name, err)
	}
	i.Payload, i.Header, i.Result = bytes.Clone(i.Payload), maps.Clone(i.Header), bytes.Clone(i.Result) // it is also another caller's
	return infoOf(i), nil
}

// Revive puts dead letters back into the queue, due now and with no attempts, and returns how many
// of these IDs were dead letters; the others are left unchanged. It works on a full server.
//
// A dead letter with an empty ID, which only a foreign client can have written, is removed for
// good: no operation can name it.
//
// Without IDs it does nothing and returns 0. More than 250 are revived in several steps. If one
// fails, the number of those revived before is returned beside the error. After ErrUnknown it may
// be called again: what has been revived is no dead letter any more, unless it has died again.
func (q *Queue) Revive(ctx context.Context, ids ...string) (int, error) {
	return q.changeDead(ctx, "revive", ids, (*queues.Queue).Revive)
}

// Drop removes dead letters for good, and returns how many of these IDs were dead letters; the
// others are left unchanged. So a task that was revived, or enqueued anew, after its letter was
// read, is not lost; Cancel removes a task in any state.
//
// It works on a full server.
//
// Without IDs it does nothing and returns 0. More than 250 are removed in several steps. If one
// fails, the number of those removed before is returned beside the error. After ErrUnknown it may
// be called again: what was removed is not found, unless a task of that ID has died since.
func (q *Queue) Drop(ctx context.Context, ids ...string) (int, error) {
	return q.changeDead(ctx, "drop", ids, (*queues.Queue).Drop)
}

// changeDead changes dead letters, and returns how many it has.
func (q *Queue) changeDead(ctx context.Context, op string, ids []string,
	change func(q *queues.Queue, ctx context.Context, ids []string) (int, error),
) (changed int, err error) {
	empty := slices.Index(ids, "")
	if err := q.checkArgument(op, badUnless(empty < 0, fmt.Sprintf("ids[%d] is empty", empty))); err != nil {
		return 0, err
	}
	err = q.do(op, func() error {
		changed, err = change(q.engine, ctx, ids)
		return err
	})
	return changed, err
}

// Stats is the state of a queue.
type Stats struct {
	// Due is how many tasks a worker may take now, unless pause or limits keep it from that, or
	// would set aside. A leased task that a foreign producer has moved to the past counts here
	// until the next Claim.
	Due int64
	// Scheduled is how many are due later, without those that are leased.
	Scheduled int64
	// Leased is how many are leased. A leased task that a foreign consumer has removed counts until
	// the end of its lease.
	Leased int64
	// Dead is how many are among the dead letters.
	Dead int64
	// Done is how many are in StateDone: finished, and remembered by WithRetention.
	Done int64
	// Finished is how many tasks were finished by a Worker or Dequeue, discarded, or taken by Pop.
	//
	// This counter and the next five are of all processes. They begin again at 0 after a day in
	// which no Worker ran and fewer than 16 tasks were counted; nothing else makes them fall. A
	// server that denies HINCRBY counts nothing.
	Finished int64
	// Discarded is how many of the finished ones were discarded by Discard, or expired: their units
	// were put back, and they are not remembered.
	Discarded int64
	// Retried is how many attempts failed, after which the task was to be tried again.
	Retried int64
	// Buried is how many tasks were put among the dead letters.
	Buried int64
	// Lost is how many leases ran out, counted as they do, whether their tasks were claimed again
	// since or not. So it counts the leases of Workers that died or hang, and of loops with Claim,
	// too; also one whose holder was late, and has finished or extended it all the same.
	// WorkerStats.Lost is what a Worker has noticed itself.
	Lost int64
	// Trimmed is how many dead letters were removed by WithDeadLimit or WithDeadAge. Those that
	// Drop removed are not counted.
	Trimmed int64
	// Workers is how many Workers run, of all processes: see Queue.Workers.
	Workers int
	// WorkerSeen is when a Worker last reported itself, by the server's clock. Zero if none has for
	// a day.
	WorkerSeen time.Time
	// Lateness is for how long the first due task has been due; 0 if none is.
	Lateness time.Duration
	// NextDue is when the first task is due that is scheduled or, because its lease ends,
	// leased, by the server's clock. Zero if there is none.
	NextDue time.Time
	// Paused says whether the queue is paused.
	Paused bool
	// PausedUntil is when the pause ends by itself, by the server's clock. Zero if it lasts until
	// Resume.
	PausedUntil time.Time
	// Waiting is how many clients of go-redis wait in line for tasks, for Workers that have room
	// and callers of Wait. A client that has died counts until it is told of a task, or until the
	// line ends: a minute, or some poll intervals, after the last one has looked. One that may not
	// subscribe is not in line.
	Waiting int
	// GroupWaiting is how many tasks are in StateWaiting: they wait in their groups.
	GroupWaiting int64
	// Limits are the queue's limits, set by SetLimits or a Worker; zero for none.
	Limits Limits
}

// Stats counts the queue's tasks, and says who works and who waits. It changes nothing.
func (q *Queue) Stats(ctx context.Context) (Stats, error) {
	return q.stats(ctx, "stats")
}

// stats is Stats, as a part of an operation.
func (q *Queue) stats(ctx context.Context, op string) (Stats, error) {
	var s store.Stats
	err := q.do(op, func() (err error) {
		s, err = q.engine.Stats(ctx)
		return err
	})
	return statsOf(s), err
}

func statsOf(s store.Stats) Stats {
	return Stats{
		Due: s.Due, Scheduled: s.Scheduled, Leased: s.Leased, Dead: s.Dead,
		Finished: s.Finished, Discarded: s.Discarded, Retried: s.Retried, Buried: s.Buried, Lost: s.Lost, Trimmed: s.Trimmed, Done: s.Done,
		Workers: s.Workers, WorkerSeen: s.WorkerSeen, Lateness: s.Lateness, NextDue: s.NextDue,
		Paused: s.Paused, PausedUntil: s.PausedUntil, Waiting: s.Waiting, Limits: Limits(s.Limits), GroupWaiting: s.GroupWaiting,
	}
}

// Limits are how many tasks of a queue may be worked on at a time, and how many handed out in which
// time, over all processes. 0 is no limit, and so is a negative Running or Rate.
type Limits struct {
	// Running is how many tasks may be leased at a time. A lease that has run out does not count,
	// and so a handler which goes on without its lease, as one does that ignores its context, does
	// not either. Such a lease is extended only while there is a place.
	Running int
	// Rate is how many tasks may be handed out in Per. What was handed out counts, whatever becomes
	// of it: a task that is tried again counts again, and so does one of Again or Release.
	Rate int
	// Per is a second if it is 0; else 1ms to 100 years, rounded up to whole microseconds. Without
	// Rate it is ErrInvalid.
	Per time.Duration
	// Burst is how many tasks may be handed out at once if none was for a while, and 1 if it is 0.
	// In any time of Per at most Rate and Burst together are. The next task goes as soon as a
	// worker asks for it, some milliseconds late: so a Rate is reached with a Burst of as many as
	// it lets go in those. Without Rate it is ErrInvalid.
	Burst int
	// PerGroup is how many tasks of a Group may be in play at a time: up to 1,000. Defaults to 1.
	// Where it is raised, more come into play as tasks of the group end or come, or when a Worker
	// reports that it lives: each does so every 15 seconds, for a thousand tasks in play. A script
	// lets 250 in at most. Where it is lowered, those in play stay.
	PerGroup int
}

// mostLimit is the most that each number of Limits may be.
const mostLimit = 1_000_000_000

// mostPerGroup is the most that PerGroup may be.
const mostPerGroup = 1000

// checked returns the limits with what is meant by 0, or what is wrong with them.
func (l Limits) checked() (Limits, error) {
	givenRate := l.Rate
	l.Running, l.Rate, l.PerGroup = max(l.Running, 0), max(l.Rate, 0), max(l.PerGroup, 0)
	wrong := func(what string) (Limits, error) { return Limits{}, fmt.Errorf("%w: Limits: %s", ErrInvalid, what) }
	for name, n := range map[string]int{"Running": l.Running, "Rate": l.Rate, "Burst": l.Burst} {
		if n < 0 || n > mostLimit {
			return wrong(fmt.Sprintf("%s of %d: must be 0 to %d", name, n, mostLimit))
		}
	}
	if l.PerGroup > mostPerGroup {
		return wrong(fmt.Sprintf("PerGroup of %d: must be 0 to %d", l.PerGroup, mostPerGroup))
	}
	if err := checkLimit("Limits: Per", l.Per); err != nil {
		return Limits{}, err
	}
	switch {
	case l.Rate == 0 && (l.Per > 0 || l.Burst > 0):
		return wrong(fmt.Sprintf("Per or Burst without a positive Rate (it is %d)", givenRate))
	case l.Rate == 0:
		return l, nil
	case l.Per == 0:
		l.Per = time.Second
	}
	l.Per, l.Burst = time.Duration(store.CeilMicros(l.Per))*time.Microsecond, max(l.Burst, 1)
	if int64(l.Rate) > store.CeilMicros(l.Per) {
		return wrong(fmt.Sprintf("Rate of %d in %v: must be one in a microsecond at most", l.Rate, l.Per))
	}
	return l, nil
}

// SetLimits limits the queue, in place of the limits that it has; the zero value takes them away.
// They are kept with the queue, as a pause is: Claim, Pop, Wait and Workers of all processes heed
// them at once, by the server's clock.
//
// What is leased goes on. What may not be handed out yet waits in the queue, is not leased, and
// uses no attempt; a caller that waits for it is told when it may be.
//
// Pop takes nothing while as many tasks as Running are leased. What it takes counts for Rate, and
// not for Running. Each change begins a new count: of what was handed out before, at most the new
// Burst stays spent, and nothing if the limits before had no Rate. Over a failover that loses
// writes, as many more may be handed out as were lost. Workers of a build without limits get
// nothing while there are any.
//
// ErrInvalid: a Per that is neither 0 nor 1ms to 100 years, a negative Burst, either of them
// without Rate, a number above a billion, or a Rate of more than one task a microsecond. After
// ErrUnknown it may be called again.
//
// Permits limit code that is no task: see WithPermits.
func (q *Queue) SetLimits(ctx context.Context, l Limits) error {
	l, err := l.checked()
	if err := q.checkArgument("set limits", err); err != nil {
		return err
	}
	return q.do("set limits", func() error { return q.engine.Change(ctx, q.engine.Store.Limit(store.Limits(l))) })
}

// Limits returns the queue's limits: zero for none, and what is meant where SetLimits was given 0
// for Per or Burst.
func (q *Queue) Limits(ctx context.Context) (Limits, error) {
	s, err := q.stats(ctx, "limits")
	return s.Limits, err
}

// WorkerInfo is a Worker that runs, as its last heartbeat says.
type WorkerInfo struct {
	// ID is of one Run of a Worker: TaskInfo.Worker is the same.
	ID string
	// Label is the Worker's.
	Label string
	// Host is where it runs, PID its process, and Version that of this library.
	Host, Version string
	PID           int
	// Concurrency is how many handlers it may have at once, in a Pool at most. Running is how many
	// it had when it was last seen, and Stuck how many of these are stuck: see Worker.Timeout.
	Concurrency, Running, Stuck int
	// Started is when Run was called, by its own clock. Seen is when its last heartbeat came, by
	// the server's.
	Started, Seen time.Time
}

// Workers returns the Workers of the queue that run, of all processes. It changes nothing.
//
// Each Worker sends a heartbeat every 15 seconds, or once in a poll interval if that is longer (see
// WithPollInterval), and once an hour at least. A Worker that has died is left out when it has been
// silent for three times as long. Loops of one's own, with Claim or Pop, are not among them.
func (q *Queue) Workers(ctx context.Context) ([]WorkerInfo, error) {
	var workers []WorkerInfo
	err := q.do("workers", func() error {
		said, err := q.engine.Workers(ctx)
		for _, p := range said {
			workers = append(workers, WorkerInfo(p))
		}
		return err
	})
	return workers, err
}
