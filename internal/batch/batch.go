// Package batch joins calls that come at about the same time into one.
package batch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/lease"
)

// Joiner joins calls: each brings an item and has an error.
type Joiner[T any] struct {
	size   int
	wait   time.Duration
	exited error
	call   func(ctx context.Context, items []T) []error

	mu   sync.Mutex // guards open, and the members of a batch until it begins
	open *batch[T]  // the one that calls join; nil for none
}

// New returns a Joiner. It calls call with the items of up to size calls: once there are as many,
// or the first has waited for wait. call has a goroutine of its own, must not panic, and returns an
// error for each item. If it ends by runtime.Goexit, each has exited.
func New[T any](size int, wait time.Duration, exited error, call func(ctx context.Context, items []T) []error) *Joiner[T] {
	return &Joiner[T]{size: size, wait: wait, exited: exited, call: call}
}

// batch is some calls that were joined.
type batch[T any] struct {
	members []*member[T]
	begun   bool
	timer   *time.Timer
	done    chan struct{} // closed once each member has its error
}

// member is a call.
type member[T any] struct {
	ctx  context.Context
	item T
	err  error
}

// Do has the item handled together with those of other calls, and returns its error. most is how
// many calls there can be at a time, 0 if that is not known: a batch does not wait for more.
//
// If ctx ends before the batch begins, Do returns its cause, and the item is not handled. After
// that Do returns when call has.
func (j *Joiner[T]) Do(ctx context.Context, item T, most int) error {
	size := j.size
	if most > 0 {
		size = min(size, most)
	}
	b, m := j.join(ctx, item, size)
	select {
	case <-b.done:
	case <-ctx.Done():
		if j.leave(b, m) {
			return context.Cause(ctx)
		}
		<-b.done
	}
	return m.err
}

// join adds a call to the open batch, and has that begin if it is full.
func (j *Joiner[T]) join(ctx context.Context, item T, size int) (*batch[T], *member[T]) {
	j.mu.Lock()
	defer j.mu.Unlock()
	b, m := j.open, &member[T]{ctx: ctx, item: item}
	if b == nil {
		b = &batch[T]{done: make(chan struct{})}
		b.timer = time.AfterFunc(j.wait, func() { j.beginLate(b) })
		j.open = b
	}
	b.members = append(b.members, m)
	if len(b.members) >= size {
		j.begin(b)
	}
	return b, m
}

// beginLate has a batch begin that has waited for others long enough.
func (j *Joiner[T]) beginLate(b *batch[T]) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.open == b {
		j.begin(b)
	}
}

// begin has the open batch begin, which no call joins any more. The caller holds the mutex.
func (j *Joiner[T]) begin(b *batch[T]) {
	b.begun, j.open = true, nil
	b.timer.Stop()
	b.members = slices.DeleteFunc(b.members, func(m *member[T]) bool { // they leave
		m.err = context.Cause(m.ctx)
		return m.err != nil
	})
	if len(b.members) == 0 {
		return
	}
	go j.run(b) // it ends when call returns, for which the members wait
}

// leave takes a call out of a batch, unless that has begun.
func (j *Joiner[T]) leave(b *batch[T], m *member[T]) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if b.begun {
		return !slices.Contains(b.members, m)
	}
	for i := range b.members {
		if b.members[i] == m {
			b.members = append(b.members[:i], b.members[i+1:]...)
			break
		}
	}
	if len(b.members) == 0 {
		b.timer.Stop()
		j.open = nil
	}
	return true
}

// run handles the items of a batch.
func (j *Joiner[T]) run(b *batch[T]) {
	ctx, stop := together(b.members)
	items, errs := make([]T, len(b.members)), make([]error, len(b.members))
	for i, m := range b.members {
		items[i], errs[i] = m.item, j.exited
	}
	defer func() {
		stop()
		for i, m := range b.members {
			if m.err = fmt.Errorf("a batch of %d has %d errors: there must be one for each", len(items), len(errs)); len(errs) == len(items) {
				m.err = errs[i]
			}
		}
		close(b.done)
	}()
	errs = j.call(ctx, items)
}

type contextsKey struct{}

// contexts are those of the calls of a batch. As a lease.Holding they are valid if each is.
type contexts []context.Context

// Valid reports whether all leases are.
func (cs contexts) Valid() bool {
	for _, ctx := range cs {
		if !lease.IsHeld(ctx) {
			return false
		}
	}
	return true
}

// together returns a context that ends when one of those of some calls does, with its cause. It has
// the values of the first one's, except for what that knows of its lease.
func together[T any](members []*member[T]) (ctx context.Context, stop func()) {
	all := make(contexts, len(members))
	for i, m := range members {
		all[i] = m.ctx
	}
	ctx = context.WithValue(lease.WithHolding(context.WithoutCancel(all[0]), all), contextsKey{}, all)
	ctx, cancel := context.WithCancelCause(ctx)
	forget := make([]func() bool, len(all))
	var first time.Time // of the deadlines
	for i, one := range all {
		forget[i] = context.AfterFunc(one, func() { cancel(context.Cause(one)) })
		if at, ok := one.Deadline(); ok && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	end := func() {}
	if !first.IsZero() {
		ctx, end = context.WithDeadline(ctx, first)
	}
	return ctx, func() {
		end()
		cancel(nil)
		for _, forget := range forget {
			forget()
		}
	}
}

// ContextOf returns the context of the i-th call of the batch that a context is for, if it is for
// one.
func ContextOf(ctx context.Context, i int) (one context.Context, ok bool) {
	all, _ := ctx.Value(contextsKey{}).(contexts)
	if i < 0 || i >= len(all) {
		return nil, false
	}
	return all[i], true
}
