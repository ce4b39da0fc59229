package sluice

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/sluice-go/sluice/internal/keyspace"
)

// Enqueue puts a task into the queue, and returns what became of it; see WithDuplicates
// for an ID that is there already. A dead letter of that ID is replaced.
//
// After ErrUnknown it may be called again with the same task: the ID is in the queue once
// in any case. But if the task was due at once, a worker may have finished it in between,
// and will be handed it again; and a copy that was held up on its way may come after a
// newer version, and replace that.
func (q *Queue) Enqueue(ctx context.Context, t Task) (Outcome, error) {
	outcomes, err := q.enqueue(ctx, "enqueue", []Task{t})
	if err != nil {
		return 0, err
	}
	return outcomes[0], nil
}

// EnqueueBatch puts tasks into the queue, in the order given; those with the same Delay or
// At keep that order, by microseconds: the n-th of those with the same At is due n
// microseconds after it. An ID may occur more than once.
//
// There may be any number of tasks: up to 250, or a megabyte of payload, are enqueued
// atomically at a time. If one of these chunks fails, the outcomes of those before are
// returned beside the error, and those after have not been sent. Of the failed chunk
// itself nothing was done, unless the error is ErrUnknown: then all of it was, or nothing.
func (q *Queue) EnqueueBatch(ctx context.Context, ts []Task) ([]Outcome, error) {
	return q.enqueue(ctx, "enqueue batch", ts)
}

func (q *Queue) enqueue(ctx context.Context, op string, ts []Task) ([]Outcome, error) {
	if err := q.check(op, ctx); err != nil {
		return nil, err
	}
	for i := range ts {
		if err := q.checkTask(&ts[i]); err != nil {
			return nil, fmt.Errorf("sluice: %s: %w", op, err)
		}
	}
	done := make([]Outcome, 0, len(ts))
	same, floor := map[dueTime]int{}, "0"
	for len(ts) > 0 {
		n, args := q.pack(ts, same, floor)
		reply, err := q.executor.Run(ctx, scriptEnqueue.Request(q.keys, args...))
		if err == nil {
			done, floor, err = appendOutcomes(done, reply.Value, n)
		}
		if err != nil {
			return done, wrap(op, q.name, err)
		}
		ts = ts[n:]
	}
	return done, nil
}

// dueTime is when a task is due, as the script is given it.
type dueTime struct {
	sign byte  // '+' for a delay, '@' for a time
	us   int64 // from now, or Unix time
}

// pack makes the arguments for the first chunk of ts. same counts the tasks with the same
// due time, which are kept apart by a microsecond each: those with the same At in the whole
// batch, those with the same Delay in this chunk, since delays count from floor, which is
// after the tasks of the chunks before.
func (q *Queue) pack(ts []Task, same map[dueTime]int, floor string) (n int, args []any) {
	args = append(make([]any, 0, 3+3*min(len(ts), maxGroup)), policies[q.options.duplicates], q.channel, floor)
	size := 0
	maps.DeleteFunc(same, func(due dueTime, _ int) bool { return due.sign == '+' })
	for n < len(ts) && n < maxGroup && (n == 0 || size+len(ts[n].Payload) <= maxGroupBytes) {
		t := &ts[n]
		size += len(t.Payload)
		due := dueTime{'+', ceilMicros(t.Delay)}
		if !t.At.IsZero() {
			due = dueTime{'@', t.At.Add(time.Microsecond - 1).UnixMicro()}
		}
		after := int64(same[due])
		if len(ts) > 1 || floor != "0" {
			same[due]++
		}
		// The payload is copied: the caller may use it again when its context has ended,
		// while the command is still under way.
		args = append(args, t.ID, string(appendMicros([]byte{due.sign}, due.us+after)), string(t.Payload))
		n++
	}
	return n, args
}

var policies = [...]string{Replace: "replace", Keep: "keep", Earliest: "earliest", Latest: "latest"}

func (q *Queue) checkTask(t *Task) error {
	switch {
	case len(t.ID) == 0 || len(t.ID) > keyspace.MaxLength:
		return fmt.Errorf("%w: a task ID has 1 to %d bytes", ErrInvalid, keyspace.MaxLength)
	case len(t.Payload) > q.options.maxPayload:
		return fmt.Errorf("%w: payload of %d bytes, %d are allowed", ErrInvalid, len(t.Payload), q.options.maxPayload)
	case t.Delay != 0 && !t.At.IsZero():
		return fmt.Errorf("%w: both Delay and At", ErrInvalid)
	// After is wrong for times that are 292 billion years away.
	case !t.At.IsZero() && (t.At.Unix() < 0 || t.At.Unix() > lastTime.Unix() || t.At.After(lastTime)):
		return fmt.Errorf("%w: At before 1970 or after %d", ErrInvalid, lastTime.Year())
	}
	return checkDelay(t.Delay)
}

func checkDelay(d time.Duration) error {
	if d < 0 || d > longest {
		return fmt.Errorf("%w: delay must be 0 to 100 years", ErrInvalid)
	}
	return nil
}
