package sluice

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/line"
	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/waitqueue"
)

// Locker makes locks of one Redis. It is safe for concurrent use.
//
// However many locks there are, it has at most one goroutine that renews them, one that releases what was acquired
// for no caller, one for each server that inspects what others wait for, and two for a pub/sub connection. Each is
// started when it is needed, and ends when it is not needed any more, or in Close. Beside them there is one for
// each command or pipeline under way; those of commands stay for 200ms to send others.
type Locker struct {
	options   lockOptions
	executor  *redisexec.Executor
	notifier  *notify.Notifier
	process   *line.Process
	queues    *waitqueue.Set[*address] // by key
	permits   *waitqueue.Set[*address] // of those that wait for permits
	apart     apartLocks
	renewer   *lease.Renewer
	janitor   *lease.Janitor
	inspector *lease.Inspector
	closed    chan struct{}
	closeOnce sync.Once
}

// NewLocker returns a Locker on rdb, which stays the caller's to close. It does no I/O.
//
// A redis.Ring, or what embeds one, is refused: it moves names between its shards. (A Ring behind a wrapper with a
// Subscribe of its own cannot be recognised: don't use one.) The options are the defaults for every lock; a call
// may override them. The error is ErrInvalid.
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
	process := line.NewProcess(notifier)
	return &Locker{
		options:   *options,
		executor:  executor,
		notifier:  notifier,
		process:   process,
		queues:    waitqueue.New(func(prefix, name string) (*address, error) { return newAddress(process, prefix, name) }),
		permits:   newPermitQueues(process),
		renewer:   lease.NewRenewer(executor),
		janitor:   lease.NewJanitor(executor),
		inspector: lease.NewInspector(executor),
		closed:    make(chan struct{}),
	}, nil
}

// Lock takes the named lock, and waits until it is free or ctx ends, or for as long as WithMaxWait says. Callers of
// one Locker wait in a queue, first come, first served.
//
// Processes (a process is one Locker) wait in a line on the server and are served in the order in which they joined
// it. A release reserves the lock for the first process in line, so that no later caller takes it before that process
// has come. The reservation lasts for three of that process's round trips, between 50ms and 500ms: if the process has
// stopped, the others wait for so long. A process keeps its place for 10ms after its last caller has given up, so that
// a caller which tries again goes on from there.
//
// Lock sends no request when ctx ends sooner than a reply can come, by the round trips of the last second. It
// returns when ctx ends all the same.
//
// Lock is not reentrant: within a Do or DoAll of this Locker that holds the name it would wait for its own
// caller, and is ErrInvalid at once, as long as that lock is valid and no permit. That is known by ctx, so a goroutine
// that is to wait for the end of such a function needs a context which is not made of the function's.
//
// The head of the queue waits in the line for all callers behind it, and polls in case a message is lost: see
// WithRetryInterval. For a while a lock is handed over within the queue without a command; then it is given back to
// Redis, where other processes wait. This window is 10ms or, on a server that is far away, three of the name's
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

// TryLock takes the named lock if it is free now. It is Lock without the waiting: ErrLocked means that
// another caller holds it, or that it is reserved for a process in line. So it is for one more round
// trip if that process's last caller has given up within the last 10ms.
//
// It is also ErrLocked, at once and without a request, if another caller of this Locker is before it at
// the name: one that asks the server for the lock, waits for it, holds it (a Do around this call too) or
// gives it back. So of several TryLocks at the same time one asks the server. The others are ErrLocked
// even if that one gets no answer, or more than one permit is free.
//
// When no server can be reached, it is ErrUnavailable at once, which is after go-redis's own attempts to
// connect. By default those take about 400ms where the host refuses them, and half a minute where it
// does not answer.
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
		if !try && !errors.Is(err, ErrInvalid) {
			k.tellWaitEnded(ctx, err)
		}
		return err
	}
	if k.options.renew {
		k.locker.renewer.Add(k.member())
	}
	k.tellAcquired(ctx, handedOver) // last: the hook may take its time
	return nil
}

// UnlockAll releases every lock that this Locker holds, in pipelines. Their contexts end with the cause ErrClosed,
// and an Unlock or Extend of one of them returns ErrClosed after that, or ErrNotHeld if the server says that the
// lock had been lost.
//
// Like Unlock it works with a context that has ended. It waits for a second, or until the last lock's own end if
// that is later, at the most, however many locks there are; and for 15ms if all of them are over. A release that
// gets no answer goes on in the background, and the error is ErrUnknown. So does one that the server refuses or
// that cannot be sent (ErrUnavailable). The error joins those of the locks, as that of LockSet.Unlock does: one of
// each kind.
func (l *Locker) UnlockAll(ctx context.Context) error {
	if err := l.check("unlock all"); err != nil {
		return err
	}
	return l.closeAll(ctx, "unlock all")
}

// Close releases every lock as UnlockAll does, lets every waiting Lock return ErrClosed, and ends every goroutine
// and connection that the Locker started. It waits a second at most, and some microseconds for each lock.
//
// What an acquisition or release that had no answer may have left is released once more in the background; what
// comes later, and what gets no answer then either, ends with its TTL. The client stays open. The error is
// UnlockAll's. To take a lock from a closed Locker is ErrClosed; its locks are not held any more. Close may be
// called twice.
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
		err = l.closeAll(ctx, "close")
		l.renewer.Close()
		l.janitor.Close()
		l.executor.Close(ctx)
		l.notifier.Close(ctx)
	})
	return err
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
func (l *Locker) anyLock(op, name string, opts []LockOption) (*Lock, error) {
	k, err := l.newLock(op, name, opts)
	if err != nil {
		return nil, err
	}
	if k.address, err = newAddress(l.process, k.options.prefix, name); err != nil {
		return nil, fmt.Errorf("sluice: %s: %w", op, err)
	}
	return k, nil
}
