package sluice

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-go/sluice/internal/locks"
	"github.com/sluice-go/sluice/internal/store"
)

// LockSet is several locks that were taken together, by LockAll. It is safe for concurrent use.
type LockSet struct {
	set    locks.Set
	byName map[string]*Lock
}

// LockAll takes all the named locks, or none: for a section that needs several at once, such as the
// items of a basket. A name that is given twice is taken once.
//
// It takes them one after the other, each as Lock does, in the order of their keys: the same in
// every process. So callers of LockAll never wait for each other in a circle, whatever the order in
// which they name the locks. A caller that takes further locks while it holds some, by another
// LockAll or by Lock, is not covered by that; it should bound its wait by WithMaxWait.
//
// The locks are renewed from the moment at which each is taken (WithAutoRenew is implied), also
// while LockAll waits for the next, in a line for each name. Meanwhile they keep other callers
// waiting, each of which waits for as long as the slowest of its names takes. Bound that by
// WithMaxWait, which holds for all the names together, and let a section name the locks that it
// needs, and not more. WithMaxHold counts for each lock from when it was taken, so that the first
// one's ends the set.
//
// The error is that of the lock which could not be taken, and names it: see Lock. It is ErrLost, or
// ErrClosed, if one that had been taken was lost while LockAll waited for the next; ErrInvalid
// without a name. After an error no lock is held: those that had been taken are released before
// LockAll returns, which waits for that for a second at the most, or for 15ms if ctx has ended.
// What gets no answer is released in the background.
func (l *Locker) LockAll(ctx context.Context, names []string, opts ...LockOption) (*LockSet, error) {
	return l.lockAll("lock all", ctx, names, opts)
}

func (l *Locker) lockAll(op string, ctx context.Context, names []string, opts []LockOption) (*LockSet, error) {
	if len(names) == 0 {
		return nil, invalid(op, "names is empty")
	}
	options, err := l.optionsOf(op, names[0], append(slices.Clip(opts), WithAutoRenew()))
	if err != nil {
		return nil, err
	}
	// All have the same prefix: the order of the names is that of the keys.
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	s, holds := &LockSet{byName: make(map[string]*Lock, len(names))}, make([]*locks.Hold, len(names))
	for i, name := range names {
		if _, err := store.MainKey(options.Prefix, name); err != nil {
			return nil, wrap(op, name, err)
		}
		k := new(Lock)
		k.held.Init(l.engine, name, options)
		if k.isHeldBy(ctx) {
			return nil, wrap(op, name, errHeldByCaller)
		}
		s.byName[name], holds[i] = k, &k.held
	}
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if options.MaxWait > 0 {
		bounded, cancel = context.WithTimeout(ctx, options.MaxWait)
	}
	defer cancel()
	if failed, err := s.set.Acquire(ctx, bounded, holds); err != nil {
		return nil, wrap(op, failed.Name(), err)
	}
	return s, nil
}

// Unlock releases all the locks and ends the Context. Each is handed over or released as
// Lock.Unlock says. Those that go back to Redis are released in pipelines.
//
// It waits until ctx ends, but no longer than one second or, if that is later, the last lock's own
// end. If ctx has ended, or all the locks are over, it waits 15ms for replies. In every case the
// set is used up.
//
// The error joins those of the locks, see Lock.Unlock: one of each kind, which names a lock and
// says how many others have it too.
func (s *LockSet) Unlock(ctx context.Context) error {
	if s.byName == nil {
		return invalid("unlock", "LockSet not made by a Locker")
	}
	return joinKinds("unlock", s.set.Holds, s.set.Unlock(ctx))
}

// Valid reports whether all the locks are held, by the local clock and without I/O. It looks at
// each.
func (s *LockSet) Valid() bool { return s.set.Valid() }

// Context returns a context that ends when the first of the locks does, with the same cause: see
// Lock.Context. It ends with context.Canceled in Unlock, also in that of a single lock of the set.
func (s *LockSet) Context() context.Context {
	if s.byName == nil {
		return (*Lock)(nil).Context()
	}
	return s.set.Context()
}

// Get returns the lock with that name, to read its Fence or to Extend it. It returns nil if the set
// has none, which is not held: see LockFromContext.
//
// The lock is the set's to release: after an Unlock of it, the Unlock of the set is ErrNotHeld.
func (s *LockSet) Get(name string) *Lock { return s.byName[name] }

// Format prints how many locks the set has, whatever the verb: its fields lead to tokens.
func (s *LockSet) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "sluice.LockSet(%d)", len(s.byName))
}

// Do calls fn while it holds the named lock. It waits for the lock as Lock does (WithMaxWait bounds
// that alone), and renews it for as long as fn runs (WithAutoRenew; WithMaxHold bounds it).
//
// LockFromContext returns the lock within fn; a Lock, Do, LockAll or DoAll of the name within fn is
// ErrInvalid (see Lock). The context that fn gets ends with ctx, with the cause ErrLost when the
// lock is lost, and with the cause ErrClosed in UnlockAll and Close; fn has to return then. The
// lock is released when fn returns or panics, even if ctx has ended.
//
// If fn was not called, the error is the one that Lock would return. Otherwise it is fn's own,
// joined with ErrLost if the lock was lost before fn had returned, or with ErrClosed if UnlockAll
// or Close has released it before: what fn did then was not protected to its end. A release that
// gets no answer, or is refused, is no error: it goes on in the background. Nor is one that the
// server carries out after the lock has expired.
func (l *Locker) Do(ctx context.Context, name string, fn func(ctx context.Context) error, opts ...LockOption) error {
	if fn == nil {
		return wrap("do", name, fmt.Errorf("%w: fn is nil", ErrInvalid))
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

// DoAll calls fn while it holds all the named locks.
//
// It takes them as LockAll does, and is otherwise Do for several locks: the context that fn gets
// ends when the first of them is lost, the errors are the same, and LockFromContext returns each of
// the locks by its name. They are released when fn returns or panics.
func (l *Locker) DoAll(ctx context.Context, names []string, fn func(ctx context.Context) error, opts ...LockOption) error {
	if fn == nil {
		return invalid("do all", "fn is nil")
	}
	s, err := l.lockAll("do all", ctx, names, opts)
	if err != nil {
		return err
	}
	return inSection(ctx, s.set.Context(), s.Get, fn, func() error { return s.endSection(ctx) })
}

// inSection calls fn with a context that ends with ctx and with held, in which find finds the
// locks. When fn has returned or panicked, end releases them; what it returns is joined with fn's
// error.
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
	holds := s.set.Holds
	valid := make([]bool, len(holds))
	for i, h := range holds {
		valid[i] = h.Valid()
	}
	errs := s.set.Unlock(ctx)
	for i, err := range errs {
		errs[i] = sectionError(valid[i], err)
	}
	return joinKinds("do all", holds, errs)
}

// joinKinds joins the errors of an operation on several locks: the first of each kind, with its
// lock's name.
func joinKinds(op string, holds []*locks.Hold, errs []error) error {
	kinds := [...]error{ErrNotHeld, ErrLost, ErrClosed, ErrUnknown, ErrUnavailable}
	var of [len(kinds) + 1][]int // where the errors of each kind are; the last has the others
	for i, err := range errs {
		if err != nil {
			kind := slices.IndexFunc(kinds[:], func(kind error) bool { return errors.Is(err, kind) })
			kind = (kind + len(of)) % len(of)
			of[kind] = append(of[kind], i)
		}
	}
	var all []error
	for _, at := range of {
		if len(at) == 0 {
			continue
		}
		err := wrap(op, holds[at[0]].Name(), errs[at[0]])
		if more := len(at) - 1; more > 0 {
			err = fmt.Errorf("%w (and %d more)", err, more)
		}
		all = append(all, err)
	}
	if len(all) == 1 {
		return all[0] // which can be unwrapped
	}
	return errors.Join(all...)
}

// sectionError returns what became of a section whose lock was valid at its end, or not, and whose
// release has returned err.
func sectionError(valid bool, err error) error {
	switch {
	case errors.Is(err, ErrNotHeld):
		return ErrLost
	case valid:
		return nil
	case errors.Is(err, ErrClosed):
		return ErrClosed
	}
	return ErrLost
}

// sectionContext is the context of a function of Do or DoAll: locks in it are found by their names.
type sectionContext struct {
	context.Context                         //nolint:containedctx // it is one
	lock            func(name string) *Lock // nil for a name that it has not
}

// lockOf is the key by which LockFromContext finds a lock.
type lockOf string

// sameAs is the key by which a lock that is to be taken finds one in the way: of its Locker, with
// its key.
type sameAs Lock

// errHeldByCaller is the error of an acquisition that would wait for its own caller.
var errHeldByCaller = fmt.Errorf("%w: the Do of this context holds the lock", ErrInvalid)

// isHeldBy reports whether ctx is that of a function which has the lock, so that it would wait for
// itself. With permits, another one may be free.
func (k *Lock) isHeldBy(ctx context.Context) bool { return ctx.Value((*sameAs)(k)) != nil }

// Value looks for a lock among those of the function, and then in the contexts around.
func (c sectionContext) Value(key any) any {
	switch key := key.(type) {
	case lockOf:
		if k := c.lock(string(key)); k != nil {
			return k
		}
	case *sameAs:
		if k := c.lock(key.held.Name()); k != nil && k.held.KeepsOut(&key.held) {
			return k
		}
	}
	return c.Context.Value(key)
}

// LockFromContext returns the lock that Do or DoAll holds for the function which got ctx, or a
// context made of it: to write its Fence beside what the lock guards, or to ask Valid before a step
// that cannot be undone.
//
// Calls of Do may be nested: each of their locks is found by the name that its Do was given. If
// several are of the same name, which takes Lockers with different servers or prefixes, it is the
// innermost.
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
