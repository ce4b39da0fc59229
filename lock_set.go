package sluice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redisexec"
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

// DoAll calls fn while it holds all the named locks. It takes them as LockAll does, and is otherwise Do for
// several locks: the context that fn gets ends when the first of them is lost, the errors are the
// same, and LockFromContext returns each of the locks by its name. They are released when fn returns or panics.
func (l *Locker) DoAll(ctx context.Context, names []string, fn func(ctx context.Context) error, opts ...LockOption) (err error) {
	if fn == nil {
		return invalid("do all", "nil function")
	}
	s, err := l.lockAll("do all", ctx, names, opts)
	if err != nil {
		return err
	}
	fnCtx, cancel := context.WithCancelCause(sectionContext{ctx, s.Lock})
	stop := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	defer func() {
		stop()
		ended := s.endSection(ctx)
		cancel(nil)
		if ended != nil {
			err = errors.Join(err, ended)
		}
	}()
	return fn(fnCtx)
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
				return wrap(op, k.name, k.whyLost())
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

// whyLost is ErrClosed for a lock that UnlockAll or Close has released, and else ErrLost.
func (k *Lock) whyLost() error {
	if errors.Is(k.lease.Cause(), ErrClosed) {
		return ErrClosed
	}
	return ErrLost
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
	errs := s.locker.unlockEach(ctx, s.locks)
	for _, k := range s.locks {
		if cause := k.lease.Cause(); cause != nil {
			s.cancel(cause)
		}
	}
	s.cancel(nil)
	return errs
}

// endSection is Lock.endSection.
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

// unlockEach is Unlock for many locks, and returns what becomes of each.
func (l *Locker) unlockEach(ctx context.Context, locks []*Lock) []error {
	errs := make([]error, len(locks))
	var ended []*Lock
	var of []int // which of the locks those are
	for i, k := range locks {
		if !k.lease.End(nil) {
			errs[i] = k.whyEnded()
			continue
		}
		ended, of = append(ended, k), append(of, i)
	}
	graced, cancel := withGrace(ctx, redisexec.ReplyGrace)
	defer cancel()
	graced, stop := context.WithDeadline(graced, releasesUntil(ended))
	defer stop()
	l.onNodes(ended, func(at []int) {
		l.stopRenewals(graced, pick(ended, at))
		for part := range slices.Chunk(at, maxReleases) {
			l.unlockSome(graced, pick(ended, part), pick(of, part), errs)
		}
	})
	return errs
}

// onNodes calls f for the locks that a server keeps, for those of different servers at the same time: one that hangs
// delays its own. f is given which of the locks they are.
func (l *Locker) onNodes(locks []*Lock, f func(at []int)) {
	byNode := map[any][]int{}
	for i, k := range locks {
		node := l.executor.NodeOf(k.address.keys[0])
		byNode[node] = append(byNode[node], i)
	}
	var all sync.WaitGroup
	for _, at := range byNode {
		if len(byNode) == 1 {
			f(at)
			return
		}
		all.Go(func() { f(at) })
	}
	all.Wait()
}

// pick returns those of all that are at these places.
func pick[T any](all []T, at []int) []T {
	picked := make([]T, len(at))
	for i, place := range at {
		picked[i] = all[place]
	}
	return picked
}

// stopRenewals ends the renewals of locks, and waits for those under way.
func (l *Locker) stopRenewals(ctx context.Context, locks []*Lock) {
	var renewed []lease.Renewable
	for _, k := range locks {
		if k.options.renew {
			renewed = append(renewed, k.member())
		}
	}
	l.renewer.RemoveAll(ctx, renewed)
}

// unlockSome hands locks over, or releases them in one pipeline, which is sent twice if it must be. The
// error of each goes to its place in errs.
func (l *Locker) unlockSome(ctx context.Context, locks []*Lock, of []int, errs []error) {
	var requests []redisexec.Request
	var back []int // which of locks go back to Redis
	for i, k := range locks {
		if k.handOver() {
			k.tellEnded(handedOver)
			continue
		}
		requests, back = append(requests, k.releaseRequest()), append(back, i)
	}
	received := make([]int, len(back))
	for j, i := range back {
		received[j] = l.notifier.Received(locks[i].address.channel)
	}
	results, repeated := l.pipelineTwice(ctx, requests)
	for j, i := range back {
		k, r := locks[i], results[j]
		var err error
		if r.Err != nil {
			err = r.Final()
		}
		notified, err := k.handleRelease(r.Value, repeated[j], err)
		k.givenBack(notified, received[j]+1)
		k.tellEnded(k.releasedOrLost(err))
		errs[of[i]] = err
	}
}

// pipelineTwice sends requests that may be repeated, and those without an answer once more: the connection may have been
// an old one. repeated says which were.
func (l *Locker) pipelineTwice(ctx context.Context, requests []redisexec.Request) (results []redisexec.Result, repeated []bool) {
	repeated = make([]bool, len(requests))
	if len(requests) == 0 {
		return nil, repeated
	}
	results = l.executor.Pipeline(ctx, requests)
	var again []redisexec.Request
	var of []int
	for i, r := range results {
		if r.Outcome == redisexec.Unknown {
			again, of = append(again, requests[i]), append(of, i)
			repeated[i] = true
		}
	}
	if len(again) > 0 && ctx.Err() == nil {
		for j, r := range l.executor.Pipeline(ctx, again) {
			results[of[j]] = r
		}
	}
	return results, repeated
}

// joinKinds joins the errors of an operation on several locks: the first of each kind, with its lock's name.
func joinKinds(op string, locks []*Lock, errs []error) error {
	kinds := [...]error{ErrNotHeld, ErrLost, ErrClosed, ErrUnknown, ErrUnavailable}
	var first, others [len(kinds) + 1]int // positions, from 1; the last is that of other errors
	for i, err := range errs {
		if err == nil {
			continue
		}
		kind := slices.IndexFunc(kinds[:], func(kind error) bool { return errors.Is(err, kind) })
		if kind < 0 {
			kind = len(kinds)
		}
		if first[kind] == 0 {
			first[kind] = i + 1
		} else {
			others[kind]++
		}
	}
	var all []error
	for kind, at := range first {
		if at == 0 {
			continue
		}
		err := wrap(op, locks[at-1].name, errs[at-1])
		if others[kind] > 0 {
			err = fmt.Errorf("%w (and %d more)", err, others[kind])
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}
