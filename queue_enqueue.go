package sluice

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/queues"
	"github.com/sluice-go/sluice/internal/store"
)

// Enqueue puts a task into the queue, and returns what became of it; see WithDuplicates
// for an ID that is there already. A dead letter of that ID is replaced, unless it holds units: see
// Take. ErrInvalid: besides bad arguments, a Take or a Group other than that of the task which has
// the ID. A task with neither leaves one that holds units or is in a group as it is: OutcomeKept,
// whatever the policy.
//
// After ErrUnknown it may be called again with the same task: the ID is in the queue once
// in any case. But if the task was due at once, a worker may have finished it in between,
// and will be handed it again; and a copy that was held up on its way may come after a
// newer version, and replace that.
//
// With ErrUnderReplicated the outcome is returned beside the error, and holds; see
// WithQueueReplicas.
//
// Calls of many goroutines on one Queue at the same time are sent together, by one script.
func (q *Queue) Enqueue(ctx context.Context, t Task) (Outcome, error) {
	const op = "enqueue"
	if err := q.check(op); err != nil {
		return 0, err
	}
	if err := checkTask(&t, q.remembers()); err != nil {
		return 0, wrap(op, q.name, err)
	}
	if !q.hooksSend() {
		outcome, err := q.engine.Enqueue(ctx, draftOf(&t))
		return Outcome(outcome), wrap(op, q.name, err)
	}
	outcomes, err := q.sendTasks(ctx, []Task{t}, func(ctx context.Context, ts []Task) ([]Outcome, error) {
		outcome, err := q.engine.Enqueue(ctx, draftOf(&ts[0]))
		return []Outcome{Outcome(outcome)}, wrap(op, q.name, err)
	})
	return outcomes[0], err
}

// EnqueueBatch puts tasks into the queue, in the order given; those with the same Delay or At keep
// that order, by microseconds: the n-th of those with the same At is due n microseconds after it.
// An ID may occur more than once.
//
// There may be any number of tasks. They are enqueued in steps: up to 250, or a megabyte of
// payload, atomically at a time, in a row with the same Duplicates. Tasks with a Take, those with a
// Group and others are steps of their own, so that a large batch is quicker if they do not alternate.
// Without tasks it does nothing.
//
// There is an outcome for each task, in the order given. After an error, 0 is the outcome of a task
// whose step has failed or was not sent. Of a step that has failed nothing was done, unless the
// error is ErrUnknown: then all of it was, or nothing. To enqueue the tasks whose outcome is 0
// again is as safe as it is for Enqueue. With ErrUnderReplicated the tasks of the step are in the
// queue, and have their outcomes. With ErrInvalid for a Take or a Group other than that of the task
// which has the ID, the other tasks of the step are in the queue, and have their outcomes; the
// steps behind it were not sent. No outcomes are returned if nothing was sent.
func (q *Queue) EnqueueBatch(ctx context.Context, ts []Task) ([]Outcome, error) {
	const op = "enqueue batch"
	if err := q.check(op); err != nil {
		return nil, err
	}
	if err := checkTasks(ctx, ts, q.remembers()); err != nil {
		return nil, wrap(op, q.name, err)
	}
	send := func(ctx context.Context, ts []Task) ([]Outcome, error) {
		outcomes, err := queues.EnqueueBatch[Outcome](ctx, q.engine, len(ts), func(i int) store.Draft { return draftOf(&ts[i]) })
		return outcomes, wrap(op, q.name, err)
	}
	if !q.hooksSend() {
		return send(ctx, ts)
	}
	return q.sendTasks(ctx, ts, send)
}

// Restore puts tasks into the queue as Get, List and All have shown them, of this queue or another
// one: due when they were, with their attempts and last errors, dead letters as such. So tasks are
// moved to another server, or brought back from a file. It returns an outcome for each:
// OutcomeAdded, OutcomeKept for an ID of which there is a task, which stays as it is, or
// OutcomeDone for one that is done and remembered. It ignores WithMaxTasks.
//
// One that was leased is due at once, and its attempt counts. One that has to wait in its group
// begins its attempts anew, and the earliest due ones of a group are in play. Units are held
// whatever is left, as with Take.Restore.
//
// It takes steps, of 250 tasks or a megabyte at a time; those that wait in groups come last, so
// that what was in play is in play again. If a step fails, the outcomes of those before are
// returned beside the error, 0 for the others; to call it again is safe as it is for Enqueue.
// ErrInvalid, and nothing is sent: what Enqueue refuses, except an Expires that is over; a task
// that is done or absent, or one that was read without its payload. See TaskInfo.Check.
func (q *Queue) Restore(ctx context.Context, ts ...TaskInfo) ([]Outcome, error) {
	const op = "restore"
	tasks, err := restoredOf(ts)
	if err := q.checkArgument(op, err); err != nil {
		return nil, err
	}
	outcomes := make([]Outcome, len(ts))
	for _, waits := range []bool{false, true} {
		var of []int
		var part []store.Restored
		for i := range tasks {
			if (ts[i].State == StateWaiting) == waits {
				of, part = append(of, i), append(part, tasks[i])
			}
		}
		some, err := queues.Restore[Outcome](ctx, q.engine, part)
		for i, o := range some {
			outcomes[of[i]] = o
		}
		if err != nil {
			return outcomes, wrap(op, q.name, err)
		}
	}
	return outcomes, nil
}

// restoredOf returns tasks as the engine restores them, or what is wrong with one.
func restoredOf(ts []TaskInfo) ([]store.Restored, error) {
	tasks := make([]store.Restored, len(ts))
	for i := range ts {
		var err error
		if tasks[i], err = ts[i].restored(); err != nil {
			return nil, fmt.Errorf("ts[%d]: %w", i, err)
		}
	}
	return tasks, nil
}

// Check says what is wrong with the task, which Restore would refuse: ErrInvalid. It sends nothing.
func (t TaskInfo) Check() error {
	if _, err := t.restored(); err != nil {
		return fmt.Errorf("sluice: check task: %w", err)
	}
	return nil
}

// restored returns the task as the engine restores it.
func (t *TaskInfo) restored() (r store.Restored, err error) {
	at := t.Due
	switch {
	case t.State <= StateAbsent || t.State == StateDone || t.State > StateWaiting:
		return r, fmt.Errorf("%w: a task that is %v cannot be restored", ErrInvalid, t.State)
	case t.Omitted > 0:
		return r, fmt.Errorf("%w: it was read without its payload", ErrInvalid)
	case t.Attempt < 0 || t.Attempt > maxAttempt:
		return r, fmt.Errorf("%w: Attempt must be 0 to %d", ErrInvalid, maxAttempt)
	case t.State == StateDead:
		at = t.DiedAt
	case t.State == StateLeased: // it has been due since then
		if at = t.LeasedSince; at.IsZero() {
			at = time.Now()
		}
	}
	// Without At: the task may have been tried again, or have died, behind its Expires.
	task := Task{ID: t.ID, Kind: t.Kind, Payload: t.Payload, Header: t.Header, Take: t.Take, Group: t.Group, Expires: t.Expires}
	if err := checkTask(&task, false); err != nil {
		return r, err
	}
	if !isTime(at) || !isTime(t.FailedAt) || at.IsZero() {
		return r, fmt.Errorf("%w: Due, DiedAt, FailedAt and Expires must be 1970 to %d", ErrInvalid, store.LastTime.Year())
	}
	return store.Restored{
		ID: t.ID, Payload: store.Pack(t.Kind, t.Header, t.Expires, t.Payload), At: store.DueAt(at), Dead: t.State == StateDead, Attempt: t.Attempt,
		Reason: cutReason(t.Reason), Failed: t.FailedAt, Take: t.Take.draft(), Group: t.Group,
	}, nil
}

var policyNames = [...]string{"unknown", DuplicatesReplace: "replace", DuplicatesKeep: store.Keep, DuplicatesEarliest: "earliest", DuplicatesLatest: "latest", DuplicatesKeepDue: "keepdue", DuplicatesOnce: store.Once}

// maxGroup is the most bytes of a task's group.
const maxGroup = 256

// checkEvery is after how many tasks checkTasks looks at its context. A million take half a second.
const checkEvery = 1000

// remembers reports whether the queue remembers what is done.
func (q *Queue) remembers() bool { return q.options.Retention > 0 }

// draftOf returns the task as the engine takes it.
func draftOf(t *Task) store.Draft {
	d := store.Draft{ID: t.ID, Kind: t.Kind, Payload: t.Payload, Header: t.Header, Delay: t.Delay, At: t.At, Take: t.Take.draft(), Group: t.Group, Expires: t.Expires}
	if t.Duplicates != 0 {
		d.Duplicates = t.Duplicates.String()
	}
	return d
}

// checkTasks says what is wrong with any of the tasks, unless ctx ends before.
func checkTasks(ctx context.Context, ts []Task, remembers bool) error {
	for i := range ts {
		if err := checkTask(&ts[i], remembers); err != nil {
			return fmt.Errorf("ts[%d]: %w", i, err)
		}
		if i%checkEvery == checkEvery-1 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// isTime reports whether a task may be due then, or expire: zero stands for neither. After is wrong
// for times that are 292 billion years away.
func isTime(at time.Time) bool {
	return at.IsZero() || at.Unix() >= 0 && at.Unix() <= store.LastTime.Unix() && !at.After(store.LastTime)
}

// Check says what is wrong with the task, which Enqueue would refuse: ErrInvalid. It sends nothing. It
// is for what keeps a task elsewhere for a while, such as an outbox.
func (t Task) Check() error {
	if err := checkTask(&t, true); err != nil {
		return fmt.Errorf("sluice: check task: %w", err)
	}
	return nil
}

// checkTask says what is wrong with a task for a queue that remembers what is done, or does not.
func checkTask(t *Task, remembers bool) error {
	switch {
	case len(t.ID) == 0 || len(t.ID) > keyspace.MaxLength:
		return fmt.Errorf("%w: ID must be 1 to %d bytes", ErrInvalid, keyspace.MaxLength)
	case t.Delay != 0 && !t.At.IsZero():
		return fmt.Errorf("%w: Delay and At are both set", ErrInvalid)
	case !isTime(t.At):
		return fmt.Errorf("%w: At must be 1970 to %d", ErrInvalid, store.LastTime.Year())
	case !isTime(t.Expires):
		return fmt.Errorf("%w: Expires must be 1970 to %d", ErrInvalid, store.LastTime.Year())
	case !t.Expires.IsZero() && !t.At.IsZero() && !t.At.Before(t.Expires):
		return fmt.Errorf("%w: Expires is not after At", ErrInvalid)
	}
	if t.Duplicates != 0 {
		if err := t.Duplicates.check(remembers); err != nil {
			return err
		}
	}
	if len(t.Kind) > store.MaxHeaderKey {
		return fmt.Errorf("%w: Kind must be %d bytes at most", ErrInvalid, store.MaxHeaderKey)
	}
	if err := t.Take.check(); err != nil {
		return err
	}
	if t.Group != "" {
		if err := t.checkGroup(); err != nil {
			return err
		}
	}
	if err := t.checkHeader(); err != nil {
		return err
	}
	if err := t.checkSize(); err != nil {
		return err
	}
	return checkDelay("Delay", t.Delay)
}

// checkGroup says what is wrong with a group.
func (t *Task) checkGroup() error {
	if len(t.Group) > maxGroup || strings.ContainsRune(t.Group, 0) {
		return fmt.Errorf("%w: Group must be %d bytes at most, none of them 0", ErrInvalid, maxGroup)
	}
	return nil
}

// checkHeader says what is wrong with the header. The error names no key and no value.
func (t *Task) checkHeader() error {
	n := len(t.Header)
	for _, isSet := range []bool{t.Kind != "", !t.Expires.IsZero()} { // which are kept among the pairs
		if isSet {
			n++
		}
	}
	if n > store.MaxHeaders {
		return fmt.Errorf("%w: Header has %d pairs with Kind and Expires, %d are allowed", ErrInvalid, n, store.MaxHeaders)
	}
	for key := range t.Header {
		switch {
		case len(key) == 0 || len(key) > store.MaxHeaderKey:
			return fmt.Errorf("%w: a key of Header must be 1 to %d bytes", ErrInvalid, store.MaxHeaderKey)
		case key == store.KindKey:
			return fmt.Errorf("%w: Header must not have %s: set Kind", ErrInvalid, store.KindKey)
		case key == store.ExpiresKey:
			return fmt.Errorf("%w: Header must not have %s: set Expires", ErrInvalid, store.ExpiresKey)
		}
	}
	return nil
}

// checkSize says whether the task's kind, header and payload are too large.
func (t *Task) checkSize() error {
	size := len(t.Kind) + len(t.Payload)
	for key, value := range t.Header {
		size += len(key) + len(value)
	}
	switch {
	case size <= maxPayload:
		return nil
	case len(t.Header) == 0 && t.Kind == "":
		return fmt.Errorf("%w: Payload of %d bytes, %d are allowed", ErrInvalid, size, maxPayload)
	default:
		return fmt.Errorf("%w: Kind, Header and Payload of %d bytes, %d are allowed", ErrInvalid, size, maxPayload)
	}
}

// NewID returns an ID for a task that has no name of its own: 26 digits and lower-case letters, 72
// bits of which are random beside the time, so that no other process makes the same.
//
// IDs sort by the time at which they were made, by the local clock; those of one process sort in
// the order of the calls, also when that clock is set back. Where a task has a name, such as that
// of an order, use it: then the task is in the queue once, however often it is enqueued.
func NewID() string {
	var id [16]byte                                           // microseconds of Unix time, which take seven bytes until the year 4253, and random ones
	binary.BigEndian.PutUint64(id[:], uint64(nextMicro())<<8) //nolint:gosec // not negative
	_, _ = rand.Read(id[7:])                                  // never fails
	return idEncoding.EncodeToString(id[:])
}

// idEncoding keeps the order of what it encodes. It has no letters that are easily taken for
// digits.
var idEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

var lastMicro atomic.Int64

// nextMicro returns the time in microseconds, or more than it returned last if that is later.
func nextMicro() int64 {
	for {
		last := lastMicro.Load()
		next := max(time.Now().UnixMicro(), last+1)
		if lastMicro.CompareAndSwap(last, next) {
			return next
		}
	}
}
