package sluice

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// Enqueue puts a task into the queue, and returns what became of it; see WithDuplicates
// for an ID that is there already. A dead letter of that ID is replaced.
//
// After ErrUnknown it may be called again with the same task: the ID is in the queue once
// in any case. But if the task was due at once, a worker may have finished it in between,
// and will be handed it again; and a copy that was held up on its way may come after a
// newer version, and replace that.
//
// With ErrUnderReplicated the task is in the queue, and the outcome is returned beside the error;
// see WithQueueReplicas.
//
// Calls of many goroutines on one Queue at the same time are sent together, by one script.
func (q *Queue) Enqueue(ctx context.Context, t Task) (Outcome, error) {
	const op = "enqueue"
	if err := q.check(op); err != nil {
		return 0, err
	}
	if err := checkTask(&t); err != nil {
		return 0, fmt.Errorf("sluice: %s: %w", op, err)
	}
	if !q.hooksSend() {
		outcome, err := q.send(ctx, t)
		return outcome, wrap(op, q.name, err)
	}
	outcomes, err := q.sendTasks(ctx, []Task{t}, func(ctx context.Context, ts []Task) ([]Outcome, error) {
		outcome, err := q.send(ctx, ts[0])
		return []Outcome{outcome}, wrap(op, q.name, err)
	})
	return outcomes[0], err
}

// send enqueues a task, perhaps as a part of a group.
func (q *Queue) send(ctx context.Context, t Task) (Outcome, error) {
	// The payload is copied: the caller may use it again when its context has ended, while
	// the call is still under way.
	task := t.stored()
	reply, err := runMerged(ctx, q, q.enqueues, task, 1, task.Size(), func(task store.Enqueue) redisexec.Request {
		args := q.newTasks(1, "0", 0)
		args.Add(task)
		return q.store.Enqueue(args)
	})
	if err != nil {
		return 0, err
	}
	outcomes, _, err := store.AppendOutcomes(make([]Outcome, 0, 1), reply.Value, 1)
	if err != nil {
		return 0, err
	}
	return outcomes[0], reply.Shortfall
}

// commitEnqueues sends a group of Enqueue calls. A task with a delay is due as if it were
// alone: unlike those of a batch, the tasks have no order among each other.
func (q *Queue) commitEnqueues(calls []*mergedCall[store.Enqueue]) {
	args := q.newTasks(len(calls), "0", 0)
	for _, call := range calls {
		args.Add(call.Arg)
	}
	commitGroup(q, calls, q.store.Enqueue(args), func(result redisexec.Result, sent time.Time) {
		list, _ := result.Value.([]any)
		for i, call := range calls {
			m := mergedResult{result, sent} // a reply of another form is for each to reject
			if len(list) == len(calls)+1 {
				m.Value = []any{list[0], list[i+1]}
			}
			call.Settle(m)
		}
	})
}

// EnqueueBatch puts tasks into the queue, in the order given; those with the same Delay or At keep that order, by
// microseconds: the n-th of those with the same At is due n microseconds after it. An ID may occur more than once.
//
// There may be any number of tasks: up to 250, or a megabyte of payload, are enqueued atomically at a time.
// There is an outcome for each task, in the order given. After an error, 0 is
// the outcome of a task whose chunk has failed or was not sent. Of a chunk that has failed nothing was done,
// unless the error is ErrUnknown: then all of it was, or nothing. To enqueue the tasks whose outcome is 0
// again is as safe as it is for Enqueue. With ErrUnderReplicated all of it is in the queue, and it has its
// outcomes. No outcomes are returned if nothing was sent.
func (q *Queue) EnqueueBatch(ctx context.Context, ts []Task) ([]Outcome, error) {
	const op = "enqueue batch"
	if err := q.check(op); err != nil {
		return nil, err
	}
	if err := checkTasks(ctx, ts); err != nil {
		return nil, fmt.Errorf("sluice: %s: %w", op, err)
	}
	if !q.hooksSend() {
		outcomes, err := q.sendBatch(ctx, ts)
		return outcomes, wrap(op, q.name, err)
	}
	return q.sendTasks(ctx, ts, func(ctx context.Context, ts []Task) ([]Outcome, error) {
		outcomes, err := q.sendBatch(ctx, ts)
		return outcomes, wrap(op, q.name, err)
	})
}

// sendBatch enqueues tasks in chunks, one after the other.
func (q *Queue) sendBatch(ctx context.Context, ts []Task) ([]Outcome, error) {
	outcomes := make([]Outcome, len(ts))
	done := outcomes[:0]
	same, floor := map[store.Due]int64{}, "0"
	for len(ts) > 0 {
		n, args := q.pack(ts, same, floor)
		reply, err := q.executor.Run(ctx, q.store.Enqueue(args))
		if err == nil {
			done, floor, err = store.AppendOutcomes(done, reply.Value, n)
		}
		if err == nil {
			err = reply.Shortfall
		}
		if err != nil {
			return outcomes, err
		}
		ts = ts[n:]
	}
	return outcomes, nil
}

// pack makes the arguments for the first chunk of ts. same counts the tasks with the same
// due time, which are kept apart by a microsecond each: those with the same At in the whole
// batch, those with the same Delay in this chunk, since delays count from floor, which is
// after the tasks of the chunks before.
func (q *Queue) pack(ts []Task, same map[store.Due]int64, floor string) (n int, args *store.Batch) {
	args = q.newTasks(min(len(ts), maxGroup), floor, 1)
	size := 0
	maps.DeleteFunc(same, func(due store.Due, _ int64) bool { return due.IsDelay() })
	for n < len(ts) && n < maxGroup && (n == 0 || size+ts[n].packedSize() <= maxGroupBytes) {
		t := &ts[n]
		size += t.packedSize()
		due := t.due()
		after := same[due]
		same[due]++
		// The payload is copied: the caller may use it again when its context has ended,
		// while the command is still under way.
		args.Add(store.Enqueue{Due: due.Plus(after), ID: t.ID, Payload: t.packed()})
		n++
	}
	return n, args
}

// newTasks returns the arguments for this many tasks, none yet. Delays count from floor at
// the earliest; tasks of a group are so many microseconds apart.
func (q *Queue) newTasks(n int, floor string, apart int64) *store.Batch {
	return q.store.NewBatch(n, q.options.duplicates.String(), floor, apart)
}

func (t *Task) due() store.Due {
	if t.At.IsZero() {
		return store.DueIn(t.Delay)
	}
	return store.DueAt(t.At)
}

// stored returns the task as it is sent. It is a copy.
func (t *Task) stored() store.Enqueue {
	return store.Enqueue{Due: t.due(), ID: t.ID, Payload: t.packed()}
}

var policyNames = [...]string{DuplicatesReplace: "replace", DuplicatesKeep: "keep", DuplicatesEarliest: "earliest", DuplicatesLatest: "latest", DuplicatesKeepDue: "keepdue", DuplicatesOnce: store.Once}

// checkEvery is after how many tasks checkTasks looks at its context. A million take half a second.
const checkEvery = 1000

// checkTasks says what is wrong with any of the tasks, unless ctx ends before.
func checkTasks(ctx context.Context, ts []Task) error {
	for i := range ts {
		err := checkTask(&ts[i])
		if err == nil && i%checkEvery == checkEvery-1 {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func checkTask(t *Task) error {
	switch {
	case len(t.ID) == 0 || len(t.ID) > keyspace.MaxLength:
		return fmt.Errorf("%w: a task ID has 1 to %d bytes", ErrInvalid, keyspace.MaxLength)
	case t.Delay != 0 && !t.At.IsZero():
		return fmt.Errorf("%w: both Delay and At", ErrInvalid)
	// After is wrong for times that are 292 billion years away.
	case !t.At.IsZero() && (t.At.Unix() < 0 || t.At.Unix() > lastTime.Unix() || t.At.After(lastTime)):
		return fmt.Errorf("%w: At before 1970 or after %d", ErrInvalid, lastTime.Year())
	}
	if len(t.Kind) > store.MaxHeaderKey {
		return fmt.Errorf("%w: a kind has at most %d bytes", ErrInvalid, store.MaxHeaderKey)
	}
	if err := t.checkHeader(); err != nil {
		return err
	}
	if err := t.checkSize(); err != nil {
		return err
	}
	return checkDelay(t.Delay)
}

func checkDelay(d time.Duration) error {
	if d < 0 || d > store.LongestDuration {
		return fmt.Errorf("%w: delay must be 0 to 100 years", ErrInvalid)
	}
	return nil
}

// packed returns the kind, the header and the payload as they are stored. It is a copy.
func (t *Task) packed() string { return store.Pack(t.Kind, t.Header, t.Payload) }

// packedSize returns how many bytes packed returns.
func (t *Task) packedSize() int { return store.Size(t.Kind, t.Header, t.Payload) }

// checkHeader says what is wrong with the header. The error names no key and no value.
func (t *Task) checkHeader() error {
	if n := len(t.Header); n > store.MaxHeaders || n == store.MaxHeaders && t.Kind != "" { // which is kept among the pairs
		return fmt.Errorf("%w: a header of %d pairs, %d are allowed, with a kind", ErrInvalid, n, store.MaxHeaders)
	}
	for key := range t.Header {
		switch {
		case len(key) == 0 || len(key) > store.MaxHeaderKey:
			return fmt.Errorf("%w: a key of a header has 1 to %d bytes", ErrInvalid, store.MaxHeaderKey)
		case key == store.KindKey:
			return fmt.Errorf("%w: a header has no %s: set Kind", ErrInvalid, store.KindKey)
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
		return fmt.Errorf("%w: payload of %d bytes, %d are allowed", ErrInvalid, size, maxPayload)
	default:
		return fmt.Errorf("%w: kind, header and payload of %d bytes, %d are allowed", ErrInvalid, size, maxPayload)
	}
}
