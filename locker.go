package sluice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/waitqueue"
)

const (
	// closeWait is how long Close waits.
	closeWait = time.Second
	// maxReleases is the most locks that one pipeline releases.
	maxReleases = 250
)

// Locker makes locks of one Redis. It is safe for concurrent use. However many locks there are, it has at
// most one goroutine that renews them, one that releases what was acquired for no caller, one for each server
// that inspects what others wait for, and two for a pub/sub connection. Each is started when it is needed,
// and ends when it is not needed any more, or in Close. Beside them there is one for each command or pipeline
// under way; those of commands stay for 200ms to send others.
type Locker struct {
	options   lockOptions
	executor  *redisexec.Executor
	notifier  *notify.Notifier
	queues    *waitqueue.Set[*address] // by key
	permits   *waitqueue.Set[*address] // of those that wait for permits
	apart     apart
	renewer   *lease.Renewer
	janitor   *lease.Janitor
	inspector *lease.Inspector
	closed    chan struct{}
	closeOnce sync.Once
}

// NewLocker returns a Locker on rdb, which stays the caller's to close. It does no I/O. A
// redis.Ring, or what embeds one, is refused: it moves names between its shards. (A Ring
// behind a wrapper with a Subscribe of its own cannot be recognised: don't use one.)
// The options are the defaults for every lock; a call may override them. The error is
// ErrInvalid.
func NewLocker(rdb redis.UniversalClient, opts ...LockOption) (*Locker, error) {
	if err := checkClient(rdb); err != nil {
		return nil, fmt.Errorf("sluice: new locker: %w", err)
	}
	options, err := defaultLockOptions.with(opts)
	if err != nil {
		return nil, fmt.Errorf("sluice: new locker: %w", err)
	}
	if len(options.prefix) > keyspace.MaxLength {
		return nil, fmt.Errorf("sluice: new locker: %w: prefix too long", ErrInvalidName)
	}
	executor, notifier := redisexec.New(rdb), notify.New(rdb)
	return &Locker{
		options:   *options,
		executor:  executor,
		notifier:  notifier,
		queues:    waitqueue.New(func(prefix, name string) (*address, error) { return newAddress(notifier, prefix, name) }),
		permits:   newPermitQueues(notifier),
		renewer:   lease.NewRenewer(executor),
		janitor:   lease.NewJanitor(executor),
		inspector: lease.NewInspector(executor),
		closed:    make(chan struct{}),
	}, nil
}

// Lock takes the named lock, and waits until it is free or ctx ends, or for as long as
// WithMaxWait says. It is not reentrant: within a Do or DoAll of this Locker that holds the name it would wait for its own
// caller, and is ErrInvalid at once, as long as that lock is valid and no permit. That is known by ctx, so a goroutine
// that is to wait for the end of such a function needs a context which is not made of the function's.
//
// Callers of one Locker wait in a queue for a name, first come, first served. The head of
// the queue asks Redis: it waits for a notification, but polls again at least once in a
// retry interval, and when the holder's TTL ends. For a while a lock is handed over
// within the queue without a command; then it is given back to Redis, where other
// processes wait. This window is 10ms or, on a server that is far away, three of the name's
// round trips: a tenth of the TTL and 200ms at most. To cover that, a key lives longer than its
// TTL says, by up to the window and 2ms.
//
// While no server can be reached, or none can serve the lock, Lock tries on with growing
// pauses of up to half a second, for ten seconds or until ctx ends.
//
// The error is ErrLocked together with ctx.Err() if ctx ended after the caller had waited in line or was last
// told that another one holds the lock, unless no server could be reached since: then it is ErrUnavailable
// together with ctx.Err(). If ctx ended before either, as for the first in line of a server that gives no
// answer, it is ErrUnknown if a request had been sent, ErrUnavailable together with ctx.Err() if none could
// be, or ctx.Err() alone if nothing was sent so far. The error is ErrUnavailable after those ten
// seconds; ErrLost if the reply took longer than the TTL; ErrInvalid; ErrClosed, at once in Close; or what
// Redis or the network said. It is ErrUnknown if a reply was lost and the caller was told nothing else. After
// it, and after ErrLocked and ErrClosed too, the key may be taken for a moment: it is released in the
// background, and the caller has nothing to do.
func (l *Locker) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return l.lock("lock", ctx, name, opts, false)
}

// TryLock takes the named lock if it is free now. It is Lock without the waiting:
// ErrLocked means that another caller holds it, or a Do around this call, or is before this one in line. It does not
// overtake those who wait, and behind one that asks the server it waits for the answer to
// that one request at most: if there is none, it is ErrUnavailable. When no server can
// be reached, it is ErrUnavailable at once, which is after go-redis's own attempts to
// connect: about 400ms by default.
func (l *Locker) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return l.lock("try lock", ctx, name, opts, true)
}

func (l *Locker) lock(op string, ctx context.Context, name string, opts []LockOption, try bool) (*Lock, error) {
	k, err := l.newLock(op, name, opts)
	if err != nil {
		return nil, err
	}
	if !try && k.isHeldBy(ctx) {
		return nil, wrap(op, name, errHeldByCaller)
	}
	bounded := ctx
	if wait := k.options.maxWait; wait > 0 && !try {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	if err := k.acquire(ctx, bounded, try); err != nil {
		return nil, wrap(op, name, err)
	}
	return k, nil
}

// acquire takes the lock. bounded is the caller's ctx with a limit for the wait.
func (k *Lock) acquire(ctx, bounded context.Context, try bool) error {
	k.observe()
	handedOver, err := k.acquireInOrder(bounded, try)
	if err != nil {
		return err
	}
	if k.options.renew {
		k.locker.renewer.Add(k.member())
	}
	k.tellAcquired(ctx, handedOver) // last: the hook may take its time
	return nil
}

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
func (l *Locker) Do(ctx context.Context, name string, fn func(ctx context.Context) error, opts ...LockOption) (err error) {
	if fn == nil {
		return invalid("do", "nil function")
	}
	k, err := l.lock("do", ctx, name, append(slices.Clip(opts), WithAutoRenew()), false)
	if err != nil {
		return err
	}
	held := k.Context()
	fnCtx, cancel := context.WithCancelCause(sectionContext{ctx, func(of string) *Lock {
		if of != name {
			return nil
		}
		return k
	}})
	stop := context.AfterFunc(held, func() { cancel(context.Cause(held)) })
	defer func() {
		stop()
		ended := k.endSection(ctx)
		cancel(nil)
		if ended != nil {
			err = errors.Join(err, wrap("do", name, ended))
		}
	}()
	return fn(fnCtx)
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

// errHeldByCaller is the error of an acquisition that would wait for its own caller.
var errHeldByCaller = fmt.Errorf("%w: the Do of this context holds the lock", ErrInvalid)

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

// endSection releases a lock under which a function has run. It returns ErrLost or
// ErrClosed if the lock did not protect the function to its end.
func (k *Lock) endSection(ctx context.Context) error {
	valid := k.Valid()
	return sectionError(valid, k.Unlock(ctx))
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

// UnlockAll releases every lock that this Locker holds, in pipelines. Their contexts end
// with the cause ErrClosed, and an Unlock or Extend of one of them returns ErrClosed after
// that, or ErrNotHeld if the server says that the lock had been lost. Like Unlock it works
// with a context that has ended. It waits for a second, or until the last lock's own end if
// that is later, at the most, however many locks there are; and for 15ms if all of them are
// over. A release that gets no answer goes on in the background, and the error is
// ErrUnknown. So does one that the server refuses or that cannot be sent (ErrUnavailable);
// the error is then the first of them, joined with ErrUnknown if others got no answer.
func (l *Locker) UnlockAll(ctx context.Context) error {
	if err := l.check("unlock all"); err != nil {
		return err
	}
	return wrap("unlock", "all", l.releaseAll(ctx))
}

// releaseAll releases what is held. The locks' contexts end with ErrClosed.
func (l *Locker) releaseAll(ctx context.Context) error {
	var locks []*Lock
	for _, k := range l.held() {
		if k.lease.End(ErrClosed) {
			locks = append(locks, k)
		}
	}
	graced, cancel := withGrace(ctx, redisexec.ReplyGrace)
	defer cancel()
	graced, stop := context.WithDeadline(graced, releasesUntil(locks))
	defer stop()
	var failed releaseFailures
	l.onNodes(locks, func(at []int) {
		l.stopRenewals(graced, pick(locks, at))
		for part := range slices.Chunk(at, maxReleases) {
			l.releaseSome(graced, pick(locks, part), &failed)
		}
	})
	return failed.err()
}

// held returns the locks that are held.
func (l *Locker) held() []*Lock {
	locks := l.apart.all("")
	for _, holder := range l.queues.Holders() {
		m, _ := holder.(*member)
		locks = append(locks, m.lock())
	}
	return locks
}

// releasesUntil returns until when the releases of locks are waited for: for a second or,
// if that is later, until the last of them is over. If all are over, only a reply that comes
// within ReplyGrace is worth waiting for.
func releasesUntil(locks []*Lock) time.Time {
	now := time.Now()
	longest := redisexec.ReplyGrace
	for _, k := range locks {
		if left := k.lease.Over().Sub(now); left > 0 {
			longest = max(longest, left, closeWait)
		}
	}
	return now.Add(longest)
}

// releaseFailures are the first of each kind.
type releaseFailures struct {
	mu                sync.Mutex // guards what follows
	unknown, definite error
}

// add notes what became of a release. It makes no error for each of very many.
func (f *releaseFailures) add(r redisexec.Result) {
	if r.Err == nil {
		return
	}
	unknown := r.Outcome == redisexec.Unknown || r.Outcome == redisexec.Abandoned
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case unknown && f.unknown == nil:
		f.unknown = r.Final()
	case !unknown && f.definite == nil:
		f.definite = r.Final()
	}
}

func (f *releaseFailures) err() error {
	switch {
	case f.unknown == nil:
		return f.definite
	case f.definite == nil:
		return f.unknown
	}
	return fmt.Errorf("%w; %w", f.definite, f.unknown)
}

// releaseSome releases locks in one pipeline. If ctx has ended, that is not sent, and the
// janitor releases them, which spares the client's pool.
func (l *Locker) releaseSome(ctx context.Context, locks []*Lock, failed *releaseFailures) {
	requests := make([]redisexec.Request, len(locks))
	for i, k := range locks {
		requests[i] = k.releaseRequest()
	}
	results := l.executor.Pipeline(ctx, requests)
	var again []lease.Release
	for i, k := range locks {
		if results[i].Err != nil {
			again = append(again, k.backgroundRelease())
		}
	}
	l.janitor.Add(again...)
	for i, r := range results {
		k := locks[i]
		if released, err := redisexec.Int(r.Value); r.Err == nil && err == nil && released == 0 && k.notReleased(false) != nil {
			k.lease.Lose()
		}
		k.leave()
		k.tellEnded(k.releasedOrLost(nil))
		failed.add(r)
	}
}

// withGrace returns a context that ends d after ctx does.
func withGrace(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(d, cancel) })
	return out, func() { stop(); cancel() }
}

// Close releases every lock as UnlockAll does, lets every waiting Lock return ErrClosed, and ends every
// goroutine and connection that the Locker started. It waits a second at most, and some microseconds for each
// lock. What an acquisition or release that had no answer may have left is released once more in the
// background; what comes later, and what gets no answer then either, ends with its TTL. The client stays open. The error is
// UnlockAll's. To take a lock from a closed Locker is ErrClosed; its locks are not held any more. Close may
// be called twice.
func (l *Locker) Close() error {
	if err := l.check("close"); err != nil {
		return err
	}
	var err error
	l.closeOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeWait)
		defer cancel()
		close(l.closed)
		l.queues.Close()
		l.permits.Close()
		l.apart.close()
		err = l.releaseAll(ctx)
		l.renewer.Close()
		l.janitor.Close()
		l.executor.Close(ctx)
		l.notifier.Close(ctx)
	})
	return wrap("close", "locker", err)
}

// Format prints the type only, whatever the verb: the fields lead to tokens.
func (l *Locker) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, "sluice.Locker") }

// check refuses a zero value.
func (l *Locker) check(op string) error {
	if l.executor == nil {
		return invalid(op, "Locker not made by NewLocker")
	}
	return nil
}

// newLock checks the arguments that every operation has, except the name.
func (l *Locker) newLock(op, name string, opts []LockOption) (*Lock, error) {
	options, err := l.optionsOf(op, name, opts)
	if err != nil {
		return nil, err
	}
	return &Lock{locker: l, name: name, options: options}, nil
}

func (l *Locker) optionsOf(op, name string, opts []LockOption) (*lockOptions, error) {
	if err := l.check(op); err != nil {
		return nil, err
	}
	options := &l.options
	if len(opts) > 0 {
		var err error
		if options, err = options.with(opts); err != nil {
			return nil, fmt.Errorf("sluice: %s: %w", op, err)
		}
	}
	if background.IsClosed(l.closed) {
		return nil, wrap(op, name, ErrClosed)
	}
	return options, nil
}

// anyLock returns the lock of that name, whichever client holds it.
func (l *Locker) anyLock(op, name string) (*Lock, error) {
	k, err := l.newLock(op, name, nil)
	if err != nil {
		return nil, err
	}
	if k.address, err = newAddress(l.notifier, k.options.prefix, name); err != nil {
		return nil, fmt.Errorf("sluice: %s: %w", op, err)
	}
	return k, nil
}
