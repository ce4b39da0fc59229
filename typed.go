package sluice

import (
	"context"
	"encoding/json"
	"fmt"
)

// Typed enqueues tasks of one kind whose payload is a Go value, and handles them:
//
//	emails := sluice.Typed[Email]{Queue: queue, Kind: "email"}
//	_, err := emails.Enqueue(ctx, sluice.Task{ID: order}, Email{To: customer})
//	mux.Handle("email", emails.Handler(func(ctx context.Context, e sluice.Entry, v Email) error { ... }))
//
// It may be copied, and used by several goroutines at once.
type Typed[T any] struct {
	// Queue is where the tasks go. Handler does not need it.
	Queue *Queue
	// Kind is their Task.Kind: up to 256 bytes. Optional.
	Kind string
	// Encode makes a payload of a value, and Decode the value of a payload. They default to encoding/json.
	Encode func(v T) ([]byte, error)
	Decode func(payload []byte) (T, error)
}

// Enqueue is Queue.Enqueue of a task whose payload is v. It is ErrInvalid if the task has a payload, or another kind. An
// error of Encode is returned, and nothing is sent.
func (t Typed[T]) Enqueue(ctx context.Context, task Task, v T) (Outcome, error) {
	filled, err := t.fill(task, v)
	if err != nil {
		return 0, fmt.Errorf("sluice: enqueue: %w", err)
	}
	return t.Queue.Enqueue(ctx, filled)
}

// EnqueueBatch is Queue.EnqueueBatch of tasks, of which each has the payload vs[i]. It is ErrInvalid if there are not as many
// of both. See Enqueue.
func (t Typed[T]) EnqueueBatch(ctx context.Context, tasks []Task, vs []T) ([]Outcome, error) {
	if len(tasks) != len(vs) {
		return nil, invalid("enqueue batch", fmt.Sprintf("%d tasks with %d values", len(tasks), len(vs)))
	}
	filled := make([]Task, len(tasks))
	for i, task := range tasks {
		var err error
		if filled[i], err = t.fill(task, vs[i]); err != nil {
			return nil, fmt.Errorf("sluice: enqueue batch: %w", err)
		}
	}
	return t.Queue.EnqueueBatch(ctx, filled)
}

// fill returns the task with its kind and payload.
func (t Typed[T]) fill(task Task, v T) (Task, error) {
	switch {
	case task.Payload != nil:
		return task, fmt.Errorf("%w: a Payload beside the value", ErrInvalid)
	case task.Kind != "" && task.Kind != t.Kind:
		return task, fmt.Errorf("%w: a Task of another Kind", ErrInvalid)
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

// Handler returns a Handler that calls fn with the value of the payload. A task whose payload has none is put among
// the dead letters at once; the reason names the types of the value and of the error, and nothing of the payload.
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
