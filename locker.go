package sluice

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/locks"
	"github.com/sluice-go/sluice/internal/store"
)

// Locker makes locks of one Redis. It is safe for concurrent use.
//
// However many locks there are, it has at most one goroutine that renews them, one that releases
// what was acquired for no caller, one for each server that inspects what others wait for, and two
// for a pub/sub connection. Each is started when it is needed, and ends when it is not needed any
// more, or in Close. Beside them there is one for each command or pipeline under way; those of
// commands stay for 200ms to send others.
type Locker struct {
	engine *locks.Engine
}

// NewLocker returns a Locker on rdb, which stays the caller's to close. It does no I/O.
//
// The options are the defaults for every lock. A call may give other values. It cannot switch
// WithAutoRenew or WithFencing off, or remove the WithOwner label; its hooks are called in
// addition.
//
// A redis.Ring, or what embeds one, is refused: it moves names between its shards. (A Ring behind a
// wrapper with a Subscribe of its own cannot be recognised: don't use one.) The error is
// ErrInvalid.
func NewLocker(rdb redis.UniversalClient, opts ...LockOption) (*Locker, error) {
	if err := checkClient(rdb); err != nil {
		return nil, fmt.Errorf("sluice: new locker: %w", err)
	}
	options, err := withLockOptions(defaultLockOptions, opts)
	if err != nil {
		return nil, fmt.Errorf("sluice: new locker: %w", err)
	}
	if len(options.Prefix) > keyspace.MaxLength {
		return nil, fmt.Errorf("sluice: new locker: %w: WithLockPrefix must be %d bytes at most", ErrInvalidName, keyspace.MaxLength)
	}
	return &Locker{engine: locks.New(rdb, scripts, *options)}, nil
}

// Lock takes the named lock, and waits until it is free or ctx ends, or for as long as WithMaxWait
// says. Callers of one Locker wait in a queue, first come, first served.
//
// Processes (a process is one Locker) wait in a line on the server and are served in the order in
// which they joined it. A release reserves the lock for the first process in line, so that no later
// caller takes it before that process has come. The reservation lasts for three of that process's
// round trips, between 50ms and 500ms: if the process has stopped, the others wait for so long. A
// process keeps its place for 10ms after its last caller has given up, so that a caller which tries
// again goes on from there.
//
// Lock sends no request when ctx ends sooner than a reply can come, by the round trips of the last
// second. It returns when ctx ends all the same.
//
// Lock is not reentrant: within a Do or DoAll of this Locker that holds the name it would wait for
// its own caller, and is ErrInvalid at once, as long as that lock is valid and no permit. That is
// known by ctx, so a goroutine that is to wait for the end of such a function needs a context which
// is not made of the function's.
//
// The head of the queue waits in the line for all callers behind it, and polls in case a message is
// lost: see WithRetryInterval. For a while a lock is handed over within the queue without a
// command; then it is given back to Redis, where other processes wait. This window is 10ms or, on a
// server that is far away, three of the name's round trips: a tenth of the TTL and 200ms at most.
// To cover that, a key lives longer than its TTL says, by up to the window and 2ms.
//
// While no server can be reached, or none can serve the lock, Lock tries on with growing pauses of
// up to half a second, for ten seconds or until ctx ends.
//
// The error is ErrLocked if the lock is busy, ErrUnavailable if no server served it, ErrUnknown if
// a reply was lost, ErrLost if it took longer than the TTL, ErrUnderReplicated, ErrClosed or
// ErrInvalid: docs/errors.md has the table. If ctx has ended, ctx.Err() is joined with ErrLocked or
// ErrUnavailable, or stands alone if nothing was sent. After an error the caller holds nothing and
// has nothing to do: the key may be taken for a moment, and is released in the background.
func (l *Locker) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return l.lock("lock", ctx, name, opts, false)
}

// TryLock takes the named lock if it is free now. It is Lock without the waiting: ErrLocked means
// that another caller holds it, or that it is reserved for a process in line. So it is for one more
// round trip if that process's last caller has given up within the last 10ms.
//
// It is also ErrLocked, at once and without a request, if another caller of this Locker is before
// it at the name: one that asks the server for the lock, waits for it, holds it (a Do around this
// call too) or gives it back. So of several TryLocks at the same time one asks the server. The
// others are ErrLocked even if that one gets no answer, or more than one permit is free.
//
// When no server can be reached, it is ErrUnavailable at once, which is after go-redis's own
// attempts to connect. By default those take about 400ms where the host refuses them, and half a
// minute where it does not answer.
func (l *Locker) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return l.lock("try lock", ctx, name, opts, true)
}

func (l *Locker) lock(op string, ctx context.Context, name string, opts []LockOption, try bool) (*Lock, error) {
	k, options, err := l.newLock(op, name, opts)
	if err != nil {
		return nil, err
	}
	if !try && k.isHeldBy(ctx) {
		return nil, wrap(op, name, errHeldByCaller)
	}
	bounded := ctx
	if !try && options.MaxWait > 0 {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, options.MaxWait)
		defer cancel()
	}
	if err := k.held.Acquire(ctx, bounded, try); err != nil {
		return nil, wrap(op, name, err)
	}
	return k, nil
}

// Adopt returns a handle for a lock that was taken elsewhere, in another process for example, and
// whose token the caller has been told: so that one process begins a section, and another one ends
// it.
//
// The process that has taken the lock lets go of its own handle with Lock.Detach, which returns the
// token. The token is a secret: see Lock.Token.
//
// Adopt asks the server whether the token holds the lock, and gives it the TTL of this Locker, or
// that of opts, if that is longer than what is left. Name, WithLockPrefix and WithPermits must be
// the ones that the lock was taken by. With WithAutoRenew the lock is renewed, and with WithMaxHold
// the time counts from now. The label of WithOwner stays the first holder's. With WithFencing the
// handle has a fence of its own, which is higher than the first holder's and lower than those of
// later holders; without it, Fence is 0, since the first holder's is not kept on the server.
//
// The lock is released by Unlock, UnlockAll and Close as others are. It always goes back to Redis
// then, and is not handed over to a caller of this Locker.
//
// Adopt a token once. A second Adopt of it succeeds too while the lock is held, and both handles
// are valid: only their fences tell them apart. So a task that brings a token, and may be handed
// out again, needs a fence.
//
// If the first handle was not let go by Detach, both are valid. Whichever is unlocked first
// releases the lock, or hands it over in its own process, and the other one learns of that when it
// next extends; Close of the first process releases it, too. The fences of those to whom the first
// process hands it over may then be lower than the adopted handle's, until it goes back to Redis.
//
// The error is ErrNotHeld if the token does not hold the lock, also where only WithPermits is
// missing or too much; ErrLost if the reply took longer than the TTL; ErrInvalid, as for a token
// that no Locker has made; ErrClosed; ErrUnknown after a lost reply; ErrUnavailable;
// ErrUnderReplicated; or what Redis said. It does not wait for anything but the reply. After an
// error the lock is as it was, except that its TTL may have become longer.
func (l *Locker) Adopt(ctx context.Context, name, token string, opts ...LockOption) (*Lock, error) {
	k, err := l.anyLock("adopt", name, opts)
	if err != nil {
		return nil, err
	}
	if owner, ok := locks.OwnerIn(token); !ok || owner != "" && !isLabel(owner) {
		return nil, wrap("adopt", name, fmt.Errorf("%w: token was not made by a Locker (see Lock.Detach)", ErrInvalid))
	}
	if err := k.held.Adopt(ctx, token); err != nil {
		return nil, wrap("adopt", name, err)
	}
	return k, nil
}

// LockInfo is what Inspect found.
type LockInfo struct {
	// Held says that the lock is held.
	Held bool
	// TTL is after how long the server frees the lock, unless its holder extends it. It is negative
	// for a key without TTL, which only clients of other libraries make.
	TTL time.Duration
	// Owner is the label that its holder gave with WithOwner. It is empty without one, for a lock
	// of another library, and if several hold it.
	Owner string
	// Owners are the labels of those that hold it, of permits in the order in which they end. One
	// without a label is left out.
	Owners []string
	// Holders is how many callers hold it: 1 without WithPermits. With them, TTL is that of the
	// last one to end.
	Holders int
	// Waiting is how many processes (Lockers) wait in line for it. The callers of one process count
	// once. So does a process for which the lock is reserved until it comes: it does not hold the
	// lock yet. A process that has died counts until its turn comes, or until the line ends: a
	// minute after the last process has joined it or polled.
	Waiting int
	// WaitingOwners are the labels of the first 16 of these, the first in line first: that which the
	// caller has given, by WithOwner, with which the process joined. One without a label is left out.
	WaitingOwners []string
}

// Inspect reports whether the named lock is held, for how long at most, with which label (see
// WithOwner), and how many processes wait for it. It changes nothing, and what it reports may be
// over when it returns.
func (l *Locker) Inspect(ctx context.Context, name string) (LockInfo, error) {
	k, err := l.anyLock("inspect", name, nil)
	if err != nil {
		return LockInfo{}, err
	}
	i, err := l.engine.Inspect(ctx, &k.held)
	return lockInfo(i), wrap("inspect", name, err)
}

func lockInfo(i store.Inspected) LockInfo {
	info := LockInfo{Waiting: i.Waiting, WaitingOwners: labelsIn(i.Waiters)}
	if i.Holders == 0 {
		return info
	}
	info.Held, info.TTL, info.Holders, info.Owners = true, i.Left, i.Holders, labelsIn(i.Owners)
	if i.Holders == 1 && len(info.Owners) == 1 {
		info.Owner = info.Owners[0]
	}
	return info
}

// labelsIn returns those texts that may be labels: others may have written them.
func labelsIn(texts []string) (labels []string) {
	for _, text := range texts {
		if isLabel(text) {
			labels = append(labels, text)
		}
	}
	return labels
}

// ForceUnlock releases the named lock, whichever client holds it, and reports whether it was held.
// The holder is not asked. If that is a lock of this Locker, it is lost at once: its Context ends
// with ErrLost, and the next waiter acquires.
//
// In another process the holder learns of it when it next extends or releases the lock (unless the
// reply to that is lost), or within two retry intervals if a caller waits behind it there; it
// believes in its lock until then, and may hand it over until the window ends of which Lock tells.
// The holder of a permit learns of it when it next extends or releases it, also one of this Locker
// whose Lock was about to return. ForceUnlock is a tool for operators. After ErrUnknown it may be
// called again; a holder of this Locker is then as one of another process.
func (l *Locker) ForceUnlock(ctx context.Context, name string) (bool, error) {
	k, err := l.anyLock("force unlock", name, nil)
	if err != nil {
		return false, err
	}
	held, err := l.engine.ForceUnlock(ctx, &k.held, "")
	return held, wrap("force unlock", name, err)
}

// ForceUnlockFrom is ForceUnlock if the holder has given itself this label, by WithOwner; else it does
// nothing, and returns false. So an operator who has seen a stuck owner does not take the lock from the
// next one. Of permits, those are released whose holders have the label. ErrInvalid: the label is
// empty.
func (l *Locker) ForceUnlockFrom(ctx context.Context, name, owner string) (bool, error) {
	const op = "force unlock from"
	k, err := l.anyLock(op, name, nil)
	if err != nil {
		return false, err
	}
	if owner == "" {
		return false, wrap(op, name, fmt.Errorf("%w: the owner is empty", ErrInvalid))
	}
	held, err := l.engine.ForceUnlock(ctx, &k.held, owner)
	return held, wrap(op, name, err)
}

// UnlockAll releases every lock that this Locker holds, in pipelines. Their contexts end with the
// cause ErrClosed, and an Unlock or Extend of one of them returns ErrClosed after that, or
// ErrNotHeld if the server says that the lock had been lost. The Locker may be used afterwards.
//
// It waits until ctx ends, but no longer than one second or, if that is later, the last lock's own
// end. If ctx has ended, or all the locks are over, it waits 15ms for replies. A lock whose release
// gets no reply is released in the background, and the error is ErrUnknown. So is a lock whose
// release the server refuses, or whose release cannot be sent (ErrUnavailable). The error joins
// those of the locks, as that of LockSet.Unlock does: one of each kind.
func (l *Locker) UnlockAll(ctx context.Context) error {
	if err := l.check("unlock all"); err != nil {
		return err
	}
	holds, errs := l.engine.UnlockAll(ctx)
	return joinKinds("unlock all", holds, errs)
}

// Close releases every lock as UnlockAll does, lets every waiting Lock return ErrClosed, and ends
// every goroutine and connection that the Locker started. It waits a second at most, and some
// microseconds for each lock.
//
// What an acquisition or release that had no answer may have left is released once more in the
// background; what comes later, and what gets no answer then either, ends with its TTL. The client
// stays open. The error is UnlockAll's. To take a lock from a closed Locker is ErrClosed; its locks
// are not held any more. Close may be called twice.
func (l *Locker) Close() error {
	if err := l.check("close"); err != nil {
		return err
	}
	holds, errs := l.engine.Close()
	return joinKinds("close", holds, errs)
}

// Format prints the type only, whatever the verb: the fields lead to tokens.
func (l *Locker) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, "sluice.Locker") }

// check refuses nil and a zero value.
func (l *Locker) check(op string) error {
	if l == nil || l.engine == nil {
		return invalid(op, "Locker not made by NewLocker")
	}
	return nil
}

// newLock checks the arguments that every operation has, except the name.
func (l *Locker) newLock(op, name string, opts []LockOption) (*Lock, *lockOptions, error) {
	options, err := l.optionsOf(op, name, opts)
	if err != nil {
		return nil, nil, err
	}
	k := new(Lock)
	k.held.Init(l.engine, name, options)
	return k, options, nil
}

func (l *Locker) optionsOf(op, name string, opts []LockOption) (*lockOptions, error) {
	if err := l.check(op); err != nil {
		return nil, err
	}
	options := &l.engine.Options
	if len(opts) > 0 {
		var err error
		if options, err = withLockOptions(*options, opts); err != nil {
			return nil, wrap(op, name, err)
		}
	}
	if l.engine.Closed() {
		return nil, wrap(op, name, ErrClosed)
	}
	return options, nil
}

// anyLock returns the lock of that name, whichever client holds it.
func (l *Locker) anyLock(op, name string, opts []LockOption) (*Lock, error) {
	k, _, err := l.newLock(op, name, opts)
	if err != nil {
		return nil, err
	}
	if err := k.held.Locate(); err != nil {
		return nil, wrap(op, name, err)
	}
	return k, nil
}
