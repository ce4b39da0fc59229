package sluice

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Typed enqueues tasks of one kind whose payload is a Go value, and handles them:
//
//	emails := sluice.Typed[Email]{Queue: queue, Kind: "email"}
//	_, err := emails.Enqueue(ctx, sluice.Task{ID: order}, Email{To: customer})
//	emails.Handle(&mux, func(ctx context.Context, e sluice.Entry, v Email) error { ... })
//
// It may be copied, and used by several goroutines at once.
type Typed[T any] struct {
	// Queue is where the tasks go. Handler does not need it.
	Queue *Queue
	// Kind is their Task.Kind: up to 256 bytes. Optional.
	Kind string
	// Encode makes a payload of a value, and Decode the value of a payload. They default to
	// encoding/json.
	Encode func(v T) ([]byte, error)
	Decode func(payload []byte) (T, error)
}

// Enqueue is Queue.Enqueue of a task whose payload is v. It is ErrInvalid if the task has a
// payload, or another kind. An error of Encode is returned, and nothing is sent.
func (t Typed[T]) Enqueue(ctx context.Context, task Task, v T) (Outcome, error) {
	filled, err := t.fill(task, v)
	if err := t.Queue.checkArgument("enqueue", err); err != nil {
		return 0, err
	}
	return t.Queue.Enqueue(ctx, filled)
}

// EnqueueBatch is Queue.EnqueueBatch of tasks, of which each has the payload vs[i]. It is
// ErrInvalid if there are not as many of both. See Enqueue.
func (t Typed[T]) EnqueueBatch(ctx context.Context, ts []Task, vs []T) ([]Outcome, error) {
	const op = "enqueue batch"
	if err := t.Queue.checkArgument(op, badUnless(len(ts) == len(vs), fmt.Sprintf("%d tasks in ts and %d values in vs", len(ts), len(vs)))); err != nil {
		return nil, err
	}
	filled := make([]Task, len(ts))
	for i, task := range ts {
		var err error
		if filled[i], err = t.fill(task, vs[i]); err != nil {
			return nil, wrap(op, t.Queue.name, fmt.Errorf("ts[%d]: %w", i, err))
		}
	}
	return t.Queue.EnqueueBatch(ctx, filled)
}

// Task returns the task with the kind, and v as its payload: for what enqueues tasks of several
// kinds together, and for an outbox. The errors are those of Enqueue for these.
func (t Typed[T]) Task(task Task, v T) (Task, error) {
	filled, err := t.fill(task, v)
	if err != nil {
		return Task{}, fmt.Errorf("sluice: task: %w", err)
	}
	return filled, nil
}

// fill returns the task with its kind and payload.
func (t Typed[T]) fill(task Task, v T) (Task, error) {
	switch {
	case task.Payload != nil:
		return task, fmt.Errorf("%w: Task.Payload is set: leave it nil", ErrInvalid)
	case task.Kind != "" && task.Kind != t.Kind:
		return task, fmt.Errorf("%w: Task.Kind is %q and the Typed's Kind %q: leave Task.Kind empty", ErrInvalid, task.Kind, t.Kind)
	}
	encode := t.Encode
	if encode == nil {
		encode = func(v T) ([]byte, error) { return json.Marshal(v) }
	}
	payload, err := encode(v)
	if err != nil {
		return task, fmt.Errorf("encode a payload: %w", err)
	}
	task.Kind, task.Payload = t.Kind, payload
	return task, nil
}

// Handle registers Handler(fn) with a Mux for the Kind. It panics where Handler and Mux.Handle do.
func (t Typed[T]) Handle(mux *Mux, fn func(ctx context.Context, e Entry, v T) error, opts ...KindOption) {
	mux.Handle(t.Kind, t.Handler(fn), opts...)
}

// Handler returns a Handler that calls fn with the value of the payload. A task whose payload has
// none is put among the dead letters at once; the reason names the types of the value and of the
// error, and nothing of the payload.
//
// It panics if fn is nil.
func (t Typed[T]) Handler(fn func(ctx context.Context, e Entry, v T) error) Handler {
	if fn == nil {
		panic("sluice: Typed.Handler: nil function")
	}
	return func(ctx context.Context, e Entry) error {
		v, err := t.decode(e.Payload)
		if err != nil {
			return Permanent(err)
		}
		return fn(ctx, e, v)
	}
}

// decode returns the value of a payload. The error tells nothing of the payload.
func (t Typed[T]) decode(payload []byte) (v T, err error) {
	decode := t.Decode
	if decode == nil {
		decode = func(payload []byte) (v T, err error) { return v, json.Unmarshal(payload, &v) }
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the payload is no %T: Decode panicked with a %T", v, p)
		}
	}()
	v, err = decode(payload)
	if err != nil {
		err = fmt.Errorf("the payload is no %T: %T", v, err) // its text may quote the payload
	}
	return v, err
}

// Batch is Handler for a function that does the work of several tasks at once: see the function
// Batch. A task whose payload has no value is in no batch. It panics where that does.
func (t Typed[T]) Batch(size int, wait time.Duration, fn func(ctx context.Context, es []Entry, vs []T) []error) Handler {
	if fn == nil {
		panic("sluice: Typed.Batch: nil function")
	}
	type valued struct {
		e Entry
		v T
	}
	do := batchOf(size, wait, func(ctx context.Context, all []valued) []error {
		es, vs := make([]Entry, len(all)), make([]T, len(all))
		for i, one := range all {
			es[i], vs[i] = one.e, one.v
		}
		return fn(ctx, es, vs)
	})
	return t.Handler(func(ctx context.Context, e Entry, v T) error { return do(ctx, valued{e, v}) })
}
