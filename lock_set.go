package sluice

import (
	"context"
	"fmt"
	"slices"
)

// LockSet is several locks that were taken together, by LockAll. It is safe for concurrent use.
type LockSet struct {
	locker *Locker
	locks  []*Lock // in the order in which they were taken
	byName map[string]*Lock
	ctx    context.Context // ends with the first of them
	cancel context.CancelCauseFunc
}

// LockAll takes all the named locks, or none: for a section that needs several at once, such as the
// items of a basket. A name that is given twice is taken once.
//
// It takes them one after the other, each as Lock does, in the order of their keys: the same in every
// process. So callers of LockAll never wait for each other in a circle, whatever the order in which they name the
// locks. A caller that takes further locks while it holds some, by another LockAll or by Lock, is
// not covered by that; it should bound its wait by WithMaxWait.
//
// The locks are renewed from the moment at which each is taken (WithAutoRenew is implied), also while LockAll
// waits for the next. Meanwhile they keep other callers waiting, each of which waits for as long as the
// slowest of its names takes. Bound that by WithMaxWait, which holds for all the names together, and let a
// section name the locks that it needs, and not more. WithMaxHold counts for each lock from when it was
// taken, so that the first one's ends the set.
//
// The error is that of the lock which could not be taken, and names it: see Lock. It is ErrLost, or
// ErrClosed, if one that had been taken was lost while LockAll waited for the next; ErrInvalid without a
// name. After an error no lock is held: those that had been taken are released before LockAll returns, which
// waits for that for a second at the most, or for 15ms if ctx has ended. What gets no answer is released in
// the background.
func (l *Locker) LockAll(ctx context.Context, names []string, opts ...LockOption) (*LockSet, error) {
	return l.lockAll("lock all", ctx, names, opts)
}

func (l *Locker) lockAll(op string, ctx context.Context, names []string, opts []LockOption) (*LockSet, error) {
	if len(names) == 0 {
		return nil, invalid(op, "no names")
	}
	options, err := l.optionsOf(op, names[0], append(slices.Clip(opts), WithAutoRenew()))
	if err != nil {
		return nil, err
	}
	// All have the same prefix: the order of the names is that of the keys.
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	for _, name := range names {
		if _, err := mainKey(options.prefix, name); err != nil {
			return nil, wrap(op, name, err)
		}
		if (&Lock{locker: l, name: name, options: options}).isHeldBy(ctx) {
			return nil, wrap(op, name, errHeldByCaller)
		}
	}
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if options.maxWait > 0 {
		bounded, cancel = context.WithTimeout(ctx, options.maxWait)
	}
	defer cancel()
	s := &LockSet{locker: l, locks: make([]*Lock, 0, len(names)), byName: make(map[string]*Lock, len(names))}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	if err := s.acquire(op, ctx, bounded, names, options); err != nil {
		releasing, cancel := context.WithTimeout(ctx, closeWait)
		defer cancel()
		s.unlock(releasing)
		return nil, err
	}
	return s, nil
}

// acquire takes the named locks in this order, until one cannot be taken, or one that was is lost.
func (s *LockSet) acquire(op string, ctx, bounded context.Context, names []string, options *lockOptions) error {
	bounded, cancel := context.WithCancel(bounded)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	for i, name := range names {
		k := &Lock{locker: s.locker, name: name, options: options}
		err := k.acquire(ctx, bounded, false)
		if err == nil {
			s.add(k)
			if i < len(names)-1 {
				continue
			}
		}
		for _, k := range s.locks {
			if !k.Valid() { // not err, which may come of this
				return wrap(op, k.name, k.closedOr(ErrLost))
			}
		}
		return wrap(op, name, err)
	}
	return nil
}

// add adds a lock that was taken.
func (s *LockSet) add(k *Lock) {
	s.locks = append(s.locks, k)
	s.byName[k.name] = k
	held := k.lease.Context()
	context.AfterFunc(held, func() { s.cancel(context.Cause(held)) })
}

// Unlock releases all the locks and ends the Context. Each is handed over or released as Lock.Unlock says.
// Those that go back to Redis are released in pipelines. It waits until ctx ends, or until the last lock's
// own end, or a second if that is later; it works with a context that has ended. In every case the set is
// used up.
//
// The error joins those of the locks, see Lock.Unlock: one of each kind, which names a lock and says
// how many others have it too.
func (s *LockSet) Unlock(ctx context.Context) error {
	if s.locker == nil {
		return invalid("unlock", "LockSet not made by a Locker")
	}
	return joinKinds("unlock", s.locks, s.unlock(ctx))
}

// unlock returns what became of each lock.
func (s *LockSet) unlock(ctx context.Context) []error {
	errs := make([]error, len(s.locks))
	var ended []*Lock
	var places []int // of those among all
	for i, k := range s.locks {
		if !k.lease.End(nil) {
			errs[i] = k.whyEnded()
			continue
		}
		ended, places = append(ended, k), append(places, i)
	}
	for j, err := range s.locker.giveBackAll(ctx, ended, false) {
		errs[places[j]] = err
	}
	for _, k := range s.locks {
		if cause := k.lease.Cause(); cause != nil {
			s.cancel(cause)
		}
	}
	s.cancel(nil)
	return errs
}

// Valid reports whether all the locks are held, by the local clock and without I/O. It looks at each.
func (s *LockSet) Valid() bool {
	return len(s.locks) > 0 && !slices.ContainsFunc(s.locks, func(k *Lock) bool { return !k.Valid() })
}

// Context returns a context that ends when the first of the locks does, with the same cause: see
// Lock.Context. It ends with context.Canceled in Unlock, also in that of a single lock of the set.
func (s *LockSet) Context() context.Context {
	if s.locker == nil {
		return (*Lock)(nil).Context()
	}
	return s.ctx
}

// Lock returns the lock with that name, to read its Fence or to Extend it. It returns nil if the set has none, which is
// not held: see LockFromContext. The lock is the set's to release: after an Unlock of it, the Unlock of the set is
// ErrNotHeld.
func (s *LockSet) Lock(name string) *Lock {
	return s.byName[name]
}

// Format prints how many locks the set has, whatever the verb: its fields lead to tokens.
func (s *LockSet) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "sluice.LockSet(%d)", len(s.locks))
}
