package sluice

import (
	"context"
	"errors"
	"slices"
)

// Do calls fn while it holds the named lock. It waits for the lock as Lock does
// (WithMaxWait bounds that alone), and renews it for as long as fn runs (WithAutoRenew;
// WithMaxHold bounds it). LockFromContext returns the lock within fn; a Lock, Do, LockAll or DoAll of the name
// within fn is ErrInvalid (see Lock). The context that fn
// gets ends with ctx, with the cause ErrLost when the lock is lost, and with the cause
// ErrClosed in UnlockAll and Close; fn has to return then. The lock is released when fn
// returns or panics, even if ctx has ended.
//
// If fn was not called, the error is the one that Lock would return. Otherwise it is
// fn's own, joined with ErrLost if the lock was lost before fn had returned, or with
// ErrClosed if UnlockAll or Close has released it before: what fn did then was not
// protected to its end. A release that gets no answer is no error: it goes on in the
// background. Nor is one that the server carries out after the lock has expired.
func (l *Locker) Do(ctx context.Context, name string, fn func(ctx context.Context) error, opts ...LockOption) error {
	if fn == nil {
		return invalid("do", "nil function")
	}
	k, err := l.lock("do", ctx, name, append(slices.Clip(opts), WithAutoRenew()), false)
	if err != nil {
		return err
	}
	find := func(of string) *Lock {
		if of != name {
			return nil
		}
		return k
	}
	return inSection(ctx, k.Context(), find, fn, func() error {
		valid := k.Valid()
		return wrap("do", name, sectionError(valid, k.Unlock(ctx)))
	})
}

// DoAll calls fn while it holds all the named locks. It takes them as LockAll does, and is otherwise Do for
// several locks: the context that fn gets ends when the first of them is lost, the errors are the
// same, and LockFromContext returns each of the locks by its name. They are released when fn returns or panics.
func (l *Locker) DoAll(ctx context.Context, names []string, fn func(ctx context.Context) error, opts ...LockOption) error {
	if fn == nil {
		return invalid("do all", "nil function")
	}
	s, err := l.lockAll("do all", ctx, names, opts)
	if err != nil {
		return err
	}
	return inSection(ctx, s.ctx, s.Lock, fn, func() error { return s.endSection(ctx) })
}

// inSection calls fn with a context that ends with ctx and with held, in which find finds the locks. When fn has returned or
// panicked, end releases them; what it returns is joined with fn's error.
func inSection(ctx, held context.Context, find func(name string) *Lock, fn func(ctx context.Context) error, end func() error) (err error) {
	fnCtx, cancel := context.WithCancelCause(sectionContext{ctx, find})
	stop := context.AfterFunc(held, func() { cancel(context.Cause(held)) })
	defer func() {
		stop()
		ended := end()
		cancel(nil)
		if ended != nil {
			err = errors.Join(err, ended)
		}
	}()
	return fn(fnCtx)
}

// endSection releases the locks under which a function has run.
func (s *LockSet) endSection(ctx context.Context) error {
	valid := make([]bool, len(s.locks))
	for i, k := range s.locks {
		valid[i] = k.Valid()
	}
	errs := s.unlock(ctx)
	for i, err := range errs {
		errs[i] = sectionError(valid[i], err)
	}
	return joinKinds("do all", s.locks, errs)
}

// sectionContext is the context of a function of Do or DoAll: locks in it are found by their names.
type sectionContext struct {
	context.Context                         //nolint:containedctx // it is one
	lock            func(name string) *Lock // nil for a name that it has not
}

// lockOf is the key by which LockFromContext finds a lock.
type lockOf string

// sameAs is the key by which a lock that is to be taken finds one in the way: of its Locker, with its key.
type sameAs Lock

// isHeldBy reports whether ctx is that of a function which has the lock, so that it would wait for itself. With permits,
// another one may be free.
func (k *Lock) isHeldBy(ctx context.Context) bool { return ctx.Value((*sameAs)(k)) != nil }

// Value looks for a lock among those of the function, and then in the contexts around.
func (c sectionContext) Value(key any) any {
	switch key := key.(type) {
	case lockOf:
		if k := c.lock(string(key)); k != nil {
			return k
		}
	case *sameAs:
		k := c.lock(key.name)
		if k != nil && k.locker == key.locker && k.options.prefix == key.options.prefix && !k.isPermit() && k.Valid() {
			return k
		}
	}
	return c.Context.Value(key)
}

// LockFromContext returns the lock that Do or DoAll holds for the function which got ctx, or a
// context made of it: to write its Fence beside what the lock guards, or to ask Valid before
// a step that cannot be undone. Calls of Do may be nested: each of their locks is found by
// the name that its Do was given. If several are of the same name, which takes Lockers with
// different servers or prefixes, it is the innermost.
//
// It returns nil if ctx does not come from a Do of that name. A nil *Lock is not held: Valid is
// false and its Context has ended; Unlock, Extend and TTL return ErrInvalid. A ctx that
// outlives its Do returns the lock all the same, which is used up: Valid is false, and the
// others say ErrNotHeld. The lock is Do's to release: after an Unlock by the function, Do
// returns ErrLost.
func LockFromContext(ctx context.Context, name string) *Lock {
	k, _ := ctx.Value(lockOf(name)).(*Lock)
	return k
}
