package sluice

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/queues"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/watch"
)

// maxPayload is the most bytes that a task's payload and header have together.
const maxPayload = 1 << 20

// Queue is a delayed task queue. It is safe for concurrent use, by any number of processes.
//
// It is not closed: it holds no resources, except a goroutine while a caller is in Wait and, with
// all Queues on the same client (a pointer), a pub/sub connection and up to four goroutines while
// one of them has a caller in Wait or a running Worker, and for five seconds after; and a goroutine
// for each command under way, which stays for 200ms to send others.
//
// A task is scheduled until its due time has come by the server's clock, then due. A
// claimed task is leased: it is due again by itself when the lease ends. The score of an
// Entry is its receipt: an operation on an entry does something only while the task still
// has that score or, once it is claimed, until that claim has ended.
//
// Unless a doc below says otherwise, an error other than ErrUnknown and ErrUnderReplicated
// means that nothing was changed, and an operation returns when its context ends.
// ErrUnavailable means, besides, that no server could be reached or none could serve it:
// trying later may help.
type Queue struct {
	engine  *queues.Queue // nil for a zero value
	name    string
	options queueOptions
}

// Task is what a producer enqueues.
type Task struct {
	// ID names the task within its queue: 1 to 512 bytes. Required; see NewID.
	ID string
	// Kind says which handler of a Mux the task is for: up to 256 bytes. Optional; without it and
	// Header, the task is stored as if there were neither.
	Kind string
	// Payload is handed to the worker that gets the task. Optional. Together with Kind and the keys
	// and values of Header it may have 1 MiB: keep what is larger elsewhere, and its name here.
	Payload []byte
	// Header goes along with the payload, for what is not the worker's business: the context of a
	// trace, say. Up to 64 pairs, one less beside a Kind, and beside Expires; a key has 1 to 256
	// bytes, and is neither "sluice-kind" nor "sluice-expires". Optional.
	Header map[string]string
	// Delay is the time from now, by the server's clock, until the task is due. A negative delay
	// means at once, as time.Until of a deadline that has passed is; one of more than 100 years is
	// ErrInvalid.
	Delay time.Duration
	// At is when the task is due, instead of Delay. A time that has passed means at once.
	// ErrInvalid: a time before 1970 or after 2200, or both Delay and At set. It is the only time
	// taken from the caller's clock.
	At time.Time
	// Duplicates says what becomes of an ID that is already in the queue, for this one enqueue.
	// Defaults to the queue's: see WithDuplicates.
	Duplicates Duplicates
	// Take is units of what is for sale, which the task takes with its enqueue: see Take. Optional.
	Take Take
	// Group has the task wait until it is its turn among the tasks of that group, such as those of
	// one customer: so many are in play at a time as Limits.PerGroup says, one by default, the
	// earliest due first. One is in play from when it may be claimed until it is done, discarded,
	// cancelled or a dead letter; between two attempts, and while it is put off by Again, too. Up
	// to 256 bytes, none of which is 0. A task of that ID in another group, or in none, is
	// ErrInvalid. Optional.
	Group string
	// Expires is when the task is worth nothing any more: a Worker hands it to no handler then, also
	// when it is to be tried again, but removes it as Discard does (DispositionExpired), and units
	// that it holds are put back. The time counts by the server's clock, when the task is claimed. A
	// handler that has begun is not interrupted. Claim, Pop and the like hand the task out all the
	// same: a loop of one's own compares Entry.Expires. ErrInvalid: a time before 1970 or after 2200,
	// or not after At. Optional.
	Expires time.Time
}

// Entry is a task as Claim, Pop, Peek and a Worker hand it out.
type Entry struct {
	ID      string
	Kind    string // the task's, "" for none
	Payload []byte
	// Header is the task's, nil for none.
	Header map[string]string
	// Attempt is how many times the task has been claimed. Up to two deliveries do not
	// count that ended with their lease, without an Extend or anything else from their
	// holder: perhaps the reply to that claim was lost, and no handler ever saw the task.
	Attempt int
	// Due is when the task became due, or will be, by the server's clock, to the microsecond. Of a
	// task that is claimed again because its lease ran out, that is when the lease ended.
	Due time.Time
	// Score is the receipt, for Dequeue, Retry, Release, Bury, Extend and KeepAlive: when the task
	// is due or, once claimed, when its lease ends, in Unix seconds by the server's clock. It is 0
	// in a Worker's handler, since the Worker settles the task: with 0 and an Attempt, these
	// operations are ErrInvalid.
	Score float64
	// Take is the units that the task holds. Its Restore is false.
	Take Take
	// Group is the task's, "" for none.
	Group string
	// Expires is the task's, zero for none.
	Expires time.Time
}

// TaskInfo is a task as Get, List and All show it, in whatever state it is.
type TaskInfo struct {
	// Entry is the task. Its Score is a good receipt only if State is StateScheduled or StateDue;
	// after a lease that ran out, it is that of the last holder too. It is 0 for a leased task,
	// which is its holder's, so that Dequeue and the like are ErrInvalid (Cancel removes it); of a
	// dead letter, and of one that is done, it is the place in the list. Due is zero for a leased
	// task, a dead letter, and one that is done: that is not known.
	Entry
	State State
	// LeaseEnds is when the lease of a leased task ends, unless it is extended, by the server's
	// clock. Else zero.
	LeaseEnds time.Time
	// LeasedSince is when a leased task was claimed, by the server's clock, or a due one whose last
	// lease has ended. Else zero.
	LeasedSince time.Time
	// Worker is the WorkerInfo.ID of the Worker that has a leased task, or had a due one until its
	// lease ended. It is empty if that was a caller of Claim, and for other tasks.
	Worker string
	// DiedAt is when a dead letter died, by the server's clock, to the microsecond. Else zero.
	DiedAt time.Time
	// Reason says why a dead letter is one: the reason that Bury was given; "attempts used up" for
	// a task that was claimed as often as WithMaxAttempts allows; "malformed" for what is not the
	// library's. Of a task that waits for another attempt, or is in one, it is the last error: what
	// a Worker's handler returned, or Retry was given. Else it is empty.
	Reason string
	// FailedAt is when the attempt ended that had that last error, by the server's clock. Else
	// zero.
	FailedAt time.Time
	// DoneAt is when a task that is done was finished, by the server's clock. Else zero.
	DoneAt time.Time
	// Result is what its handler has recorded, see RecordResult. A task that is done has no
	// Payload, Header and Kind.
	Result []byte
	// Omitted is in how many bytes kind, header and payload, or the result, are stored, if
	// WithPayloadsUpTo has left them out; else 0.
	Omitted int
}

// State is where a task stands: StateScheduled, StateDue, StateLeased, StateDead, StateDone,
// StateWaiting, or StateAbsent.
type State int

const (
	// StateAbsent: there is no task of that ID.
	StateAbsent State = iota
	// StateScheduled: it is due later.
	StateScheduled
	// StateDue: a Claim or Pop may take it.
	StateDue
	// StateLeased: a caller of Claim, or a Worker, has it.
	StateLeased
	// StateDead: it is among the dead letters.
	StateDead
	// StateDone: it is finished, and remembered: see WithRetention.
	StateDone
	// StateWaiting: it waits in its group, until others are done: see Task.Group.
	StateWaiting
)

var stateNames = [...]string{"absent", "scheduled", "due", "leased", "dead", "done", "waiting"}

// String returns the state's name in lower case.
func (s State) String() string { return nameIn(stateNames[:], int(s)) }

// Outcome is what Enqueue did with a task: OutcomeAdded, OutcomeUpdated, OutcomeKept,
// OutcomeDeferred, OutcomeDone or OutcomeSoldOut. What becomes of it in a Worker is a Disposition.
type Outcome int

const (
	// OutcomeAdded: the ID was new to the queue, or replaced a dead letter.
	OutcomeAdded Outcome = iota + 1
	// OutcomeUpdated: the task has the new due time and payload, and no attempts.
	OutcomeUpdated
	// OutcomeKept: the task was left unchanged, as the duplicate policy says, and the new version
	// was dropped. With DuplicatesKeep and DuplicatesOnce, that is so while the task is leased too.
	OutcomeKept
	// OutcomeDeferred: the task is leased. The new version waits, and takes the task's place
	// when the lease's holder finishes or gives up, so that one ID is never worked on
	// twice at once. If the lease runs out, the new version is what is handed out next.
	// With DuplicatesKeep and DuplicatesOnce there is no such version: see OutcomeKept.
	OutcomeDeferred
	// OutcomeDone: a task of that ID was finished not long ago, so that the new one was dropped:
	// see DuplicatesOnce.
	OutcomeDone
	// OutcomeSoldOut: fewer units were left than the task was to take, so that it was not enqueued:
	// see Take.
	OutcomeSoldOut
)

var outcomeNames = [...]string{"unknown", "added", "updated", "kept", "deferred", "done", "sold out"}

// String returns the outcome's name in lower case; "unknown" for 0, the outcome of a task that was
// not sent.
func (o Outcome) String() string { return nameIn(outcomeNames[:], int(o)) }

// nameIn returns a name of a list, or "unknown".
func nameIn(names []string, i int) string {
	if i < 0 || i >= len(names) {
		return "unknown"
	}
	return names[i]
}

// NewQueue returns the named queue on rdb, which stays the caller's to close. It does no
// I/O. The error is ErrInvalid, also for a redis.Ring or what embeds one: it moves names
// between its shards.
func NewQueue(rdb redis.UniversalClient, name string, opts ...QueueOption) (*Queue, error) {
	if err := checkClient(rdb); err != nil {
		return nil, fmt.Errorf("sluice: new queue: %w", err)
	}
	options, err := defaultQueueOptions.with(opts)
	if err != nil {
		return nil, fmt.Errorf("sluice: new queue: %w", err)
	}
	key, err := store.MainKey(options.prefix, name)
	if err != nil {
		return nil, fmt.Errorf("sluice: new queue: %w", err)
	}
	return &Queue{queues.New(clients.ClientOf(rdb), name, key, options.Options), name, options}, nil
}

// clients finds what all Queues on one client share.
var clients = watch.NewRegistry(scripts)

// Name returns the queue's name.
func (q *Queue) Name() string { return q.name }

// Cancel removes a task whatever its state, and returns the state in which it was. StateAbsent
// says that there was none.
//
// StateLeased says that a holder may be working on the task at this moment, and may finish the
// work: Cancel does not undo that, and only a record that the holder writes too, in the
// database say, decides which of the two came first. The holder learns of it by ErrStale.
//
// After ErrUnknown it may be called again; the state in which the task was is then lost if
// the first call has removed it.
func (q *Queue) Cancel(ctx context.Context, id string) (State, error) {
	if err := q.checkArgument("cancel", badUnless(id != "", "id is empty")); err != nil {
		return StateAbsent, err
	}
	states, err := q.engine.Cancel(ctx, []string{id}, nil)
	if len(states) == 0 {
		return StateAbsent, wrap("cancel", q.name, err)
	}
	return State(states[0]), wrap("cancel", q.name, err)
}

// CancelBatch removes tasks as Cancel does, and returns the states in which they were, in the order of
// the IDs; an ID that comes again is StateAbsent the second time. It does so in steps of 250.
//
// If a step fails, the states of those before it are returned beside the error; after ErrUnknown its
// tasks may be removed or not. Without IDs it does nothing. ErrInvalid: an ID is empty.
func (q *Queue) CancelBatch(ctx context.Context, ids ...string) ([]State, error) {
	const op = "cancel batch"
	empty := slices.Index(ids, "")
	if err := q.checkArgument(op, badUnless(empty < 0, fmt.Sprintf("ids[%d] is empty", empty))); err != nil {
		return nil, err
	}
	return q.cancel(ctx, op, ids, nil)
}

// CancelUnchanged removes tasks as CancelBatch does, except those that have changed since they were
// read by Get, List or All: a task that is leased, dead or due at another time by now is left
// alone, and is StateAbsent. A newer version that is due at the same time is not noticed.
//
// The errors are those of CancelBatch. ErrInvalid: a task was leased or absent when it was read.
func (q *Queue) CancelUnchanged(ctx context.Context, ts ...TaskInfo) ([]State, error) {
	const op = "cancel unchanged"
	ids, scores := make([]string, len(ts)), make([]float64, len(ts))
	for i, t := range ts {
		ids[i], scores[i] = t.ID, t.Score
		if t.ID == "" || t.State == StateAbsent || t.State == StateLeased {
			return nil, q.checkArgument(op, badUnless(false, fmt.Sprintf("ts[%d] is no task that was read and is not leased", i)))
		}
	}
	if err := q.check(op); err != nil {
		return nil, err
	}
	return q.cancel(ctx, op, ids, scores)
}

// cancel removes tasks: with scores, those that still have theirs.
func (q *Queue) cancel(ctx context.Context, op string, ids []string, scores []float64) (were []State, err error) {
	err = q.do(op, func() error {
		states, err := q.engine.Cancel(ctx, ids, scores)
		for _, s := range states {
			were = append(were, State(s))
		}
		return err
	})
	return were, err
}

// Reschedule makes a task due after delay, and reports whether there was one; dead letters don't
// count. The payload and the attempts stay. A negative delay means at once; one of more than 100
// years is ErrInvalid.
//
// A leased task is not taken from its holder: it will be due again at that time, as a new one, once
// the holder has finished (see OutcomeDeferred). After ErrUnknown it may be called again.
func (q *Queue) Reschedule(ctx context.Context, id string, delay time.Duration) (bool, error) {
	if err := q.checkArgument("reschedule", cmp.Or(checkDelay("delay", delay), badUnless(id != "", "id is empty"))); err != nil {
		return false, err
	}
	found, err := q.engine.Reschedule(ctx, id, max(delay, 0))
	return found, wrap("reschedule", q.name, err)
}

// MaxAttempts returns how often a task may be claimed, -1 for any number: see WithMaxAttempts. A
// loop of one's own that buries a task after its last attempt, with the error as the reason, asks
// it.
func (q *Queue) MaxAttempts() int { return cmp.Or(q.options.MaxAttempts, -1) }

// Get returns a task, whatever its state. Of a leased task for which a new version waits, Payload
// is already the new one's. Opts say whether the payload is read. The error is ErrNotFound if there
// is no such task.
func (q *Queue) Get(ctx context.Context, id string, opts ...ReadOption) (TaskInfo, error) {
	o, err := readWith(opts)
	if err := q.checkArgument("get", cmp.Or(err, badUnless(id != "", "id is empty"))); err != nil {
		return TaskInfo{}, err
	}
	found, err := q.engine.Get(ctx, id, o.most)
	if err != nil {
		return TaskInfo{}, wrap("get", q.name, err)
	}
	return infoOf(found), nil
}

// Pause keeps the queue's tasks from being handed out for d, by the server's clock, or until Resume
// if d is 0: no Claim, Pop or Worker of any process gets one. It replaces a pause that the queue
// has; limits stay.
//
// A d of less than a millisecond is a millisecond.
//
// Tasks that are leased go on: they are extended, finished, retried and buried as ever. What
// enqueues and lists works, Wait waits, and delays go by: what becomes due meanwhile is handed out
// at the end of the pause, which those who wait learn at once. It works on a full server.
//
// When Pause returns nil, no later claim brings a task. A claim that the server has carried out
// before may yet return. After ErrUnknown it may be called again. ErrInvalid: d is negative. Stats
// says whether a queue is paused, and until when.
func (q *Queue) Pause(ctx context.Context, d time.Duration) error {
	if err := q.checkArgument("pause", checkDurationFrom(0, "d", d)); err != nil {
		return err
	}
	return q.do("pause", func() error { return q.engine.Change(ctx, q.engine.Store.Pause(d)) })
}

// Resume ends a pause. Those who wait for tasks learn of it at once. A queue that is not paused
// stays as it is. After ErrUnknown it may be called again.
func (q *Queue) Resume(ctx context.Context) error {
	return q.do("resume", func() error { return q.engine.Change(ctx, q.engine.Store.Resume()) })
}

// Purge removes every task and dead letter, and what is remembered of finished ones. The holders of
// leases learn of it by ErrStale. A pause stays, until Resume ends it, and so do limits and the
// counters of Stats. After ErrUnknown it may be called again: what was enqueued since is gone too.
func (q *Queue) Purge(ctx context.Context) error {
	return q.do("purge", func() error { return q.engine.Purge(ctx) })
}

// Format prints the queue's name, whatever the verb: the fields lead to the client's
// password.
func (q *Queue) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "sluice.Queue(%q)", q.name) }

// check refuses a zero value, and the nil Queue of a Worker.
func (q *Queue) check(op string) error {
	if q == nil || q.engine == nil {
		return invalid(op, "Queue not made by NewQueue")
	}
	return nil
}

// do has the engine carry out an operation.
func (q *Queue) do(op string, engine func() error) error {
	if err := q.check(op); err != nil {
		return err
	}
	return wrap(op, q.name, engine())
}

// checkArgument is check for an operation with arguments. wrong says what is wrong with them; it is
// nil if nothing is.
func (q *Queue) checkArgument(op string, wrong error) error {
	if err := q.check(op); err != nil {
		return err
	}
	return wrap(op, q.name, wrong)
}

// badUnless is the error of an argument, unless that is good.
func badUnless(isGood bool, what string) error {
	if isGood {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrInvalid, what)
}
