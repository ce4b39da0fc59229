package sluice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Locker makes locks of one Redis. It is safe for concurrent use. However many
// locks there are, it has at most one goroutine that renews them, one that cleans
// up after lost replies, and two for a pub/sub connection; each is started when it
// is needed, and ends when it is not any more, or in Close. Beside them there is one
// for each command under way, which stays for 200ms to send others.
type Locker struct {
	door     *door
	options  lockOptions
	wake     *hub
	cleaner  *cleaner
	lines    lines
	renewer  *renewer
	closed   chan struct{}
	closeOne sync.Once
}

// LockInfo is what Inspect found.
type LockInfo struct {
	// Held says that somebody holds the lock.
	Held bool
	// TTL is when the lock is freed at the latest, unless its holder extends
	// it. It is negative for a key without TTL, which only clients of other
	// libraries make.
	TTL time.Duration
}

// NewLocker returns a Locker on rdb, which stays the caller's to close. It does
// no I/O. The options are the defaults for every lock; a call may override them.
// The error is ErrInvalid.
func NewLocker(rdb redis.UniversalClient, opts ...LockOption) (*Locker, error) {
	if isNil(rdb) {
		return nil, invalid("new locker", "nil client")
	}
	options, err := lockOptions{prefix: "Lock:", ttl: 15 * time.Second, retry: 100 * time.Millisecond}.with(opts)
	if err != nil {
		return nil, fmt.Errorf("sluice: new locker: %w", err)
	}
	if len(options.prefix) > maxName {
		return nil, fmt.Errorf("sluice: new locker: %w: prefix too long", ErrInvalidName)
	}
	d := newDoor(rdb)
	l := &Locker{
		door:    d,
		options: options,
		wake:    newHub(rdb),
		cleaner: newCleaner(d, commandTime(rdb)),
		closed:  make(chan struct{}),
		lines:   lines{all: map[string]*line{}},
	}
	l.renewer = newRenewer(l)
	return l, nil
}

// Lock takes the named lock, waiting until it is free or ctx ends. It is not
// reentrant.
//
// Callers of one Locker stand in line for a name, first come first served. The
// one in front asks Redis: it waits for a notification, but looks again at least
// once in a retry interval, and when the holder's TTL ends. For up to 10ms a lock
// goes from hand to hand in the line without a command; then it is given back to
// Redis, where other processes wait. To cover that, a key lives up to 12ms longer
// than its TTL says.
//
// Errors: ErrLocked together with ctx.Err() if ctx ended while somebody else
// held it; ctx.Err() alone if it ended before that was known; ErrLost if the reply
// took longer than the TTL; ErrInvalid; ErrClosed; or what Redis or the network
// said. After a lost reply (ErrUnknown) the key may exist for a moment: it is
// released in the background.
func (l *Locker) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return l.lock("lock", ctx, name, opts, false)
}

// TryLock takes the named lock if it is free now. It is Lock without the waiting:
// ErrLocked means that somebody else holds it. It does not overtake those who
// stand in line.
func (l *Locker) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return l.lock("try lock", ctx, name, opts, true)
}

func (l *Locker) lock(op string, ctx context.Context, name string, opts []LockOption, try bool) (*Lock, error) {
	k, err := l.newLock(op, ctx, name, opts)
	if err == nil {
		err = wrap(op, name, k.stand(ctx, try))
	}
	if err != nil {
		return nil, err
	}
	return k, nil
}

// Do calls fn while it holds the named lock, waiting for it as Lock does and
// renewing it for as long as fn runs (WithAutoRenew; WithMaxHold bounds it). The
// context that fn gets ends with ctx, and with the cause ErrLost when the lock
// is lost; fn has to return then. The lock is released when fn returns or
// panics, however ctx stands.
//
// The error is fn's own, joined with ErrLost if the lock was lost before fn had
// returned: what fn did then was not protected to its end. Errors from before
// fn was called are Lock's, and tell themselves by fn not having run. A release
// that gets no answer is no error: it goes on in the background.
func (l *Locker) Do(ctx context.Context, name string, fn func(ctx context.Context) error, opts ...LockOption) (err error) {
	if fn == nil {
		return invalid("do", "nil function")
	}
	k, err := l.lock("do", ctx, name, append(slices.Clip(opts), WithAutoRenew()), false)
	if err != nil {
		return err
	}
	held := k.Context()
	fnCtx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(held, func() { cancel(context.Cause(held)) })
	defer func() {
		stop()
		lost := !k.Valid()
		if errors.Is(k.Unlock(ctx), ErrNotHeld) {
			lost = true
		}
		cancel(nil)
		if lost {
			err = errors.Join(err, wrap("do", name, ErrLost))
		}
	}()
	return fn(fnCtx)
}

// Inspect says whether somebody holds the named lock, and for how long at most.
// It changes nothing, and what it says may be over when it returns.
func (l *Locker) Inspect(ctx context.Context, name string) (LockInfo, error) {
	k, err := l.anyLock("inspect", ctx, name)
	if err != nil {
		return LockInfo{}, err
	}
	left, err := k.inspect(ctx, "")
	if err != nil {
		return LockInfo{}, wrap("inspect", name, err)
	}
	if left == notHeld {
		return LockInfo{}, nil
	}
	return LockInfo{Held: true, TTL: left}, nil
}

// ForceUnlock releases the named lock whoever holds it, and says whether
// anybody did. The holder is not asked: it learns of it when it next extends, or
// releases (unless the reply to that is lost), and believes in its lock until
// then; and a lock that another process forces open may go from hand to hand here
// for up to 10ms more. It is a tool for operators. After ErrUnknown it may be
// called again.
func (l *Locker) ForceUnlock(ctx context.Context, name string) (bool, error) {
	k, err := l.anyLock("force unlock", ctx, name)
	if err != nil {
		return false, err
	}
	// Before, so that it does not go from hand to hand meanwhile; and after, for
	// one whose acquisition is answered only now.
	l.lines.distrust(k.at.key)
	defer l.lines.distrust(k.at.key)
	a, err := l.door.run(ctx, scriptForce.call(k.at.keys, k.at.wake))
	if err != nil {
		return false, wrap("force unlock", name, err)
	}
	released, err := yes(a.reply)
	return released, wrap("force unlock", name, err)
}

// UnlockAll releases every lock that this Locker holds, in pipelines. Like
// Unlock it works with a context that has ended, and what gets no answer goes
// on in the background and is ErrUnknown.
func (l *Locker) UnlockAll(ctx context.Context) error {
	if l == nil || l.door == nil || ctx == nil {
		return invalid("unlock all", "nil context or Locker not made by NewLocker")
	}
	return wrap("unlock", "all", l.releaseAll(ctx, nil))
}

// releaseAll releases what is held. The locks' contexts end with cause.
func (l *Locker) releaseAll(ctx context.Context, cause error) error {
	var locks []*Lock
	for _, k := range l.lines.holders() {
		if k.end(cause) == nil {
			locks = append(locks, k)
		}
	}
	waitCtx, cancel := extended(ctx, grace)
	defer cancel()
	var firstErr error
	for _, k := range locks {
		l.renewer.remove(waitCtx, k, 0)
	}
	for part := range slices.Chunk(locks, chunk) {
		calls := make([]call, len(part))
		for i, k := range part {
			calls[i] = k.releaseCall()
		}
		for i, r := range l.door.pipeline(waitCtx, calls) {
			if r.err != nil || part[i].unsure {
				part[i].cleanUp()
			}
			l.lines.advance(&part[i].place)
			if r.err != nil && firstErr == nil {
				firstErr = fmt.Errorf("%w: %w", ErrUnknown, r.err)
			}
		}
	}
	return firstErr
}

// Close releases every lock as UnlockAll does, lets every waiting Lock return
// ErrClosed, and ends every goroutine and connection that the Locker started;
// it waits a second at most. What an acquisition or release that had no answer
// may have left is released once more in the background, and ends with its TTL
// if that gets no answer either. The client stays open. The error is UnlockAll's.
// Taking a lock from a closed Locker gives ErrClosed; its locks are not held any
// more. Close may be called twice.
func (l *Locker) Close() error {
	if l == nil || l.door == nil {
		return invalid("close", "Locker not made by NewLocker")
	}
	var err error
	l.closeOne.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		close(l.closed)
		err = l.releaseAll(ctx, ErrClosed)
		l.renewer.close()
		l.cleaner.close()
		l.door.close(ctx)
		l.wake.close(ctx)
	})
	return wrap("close", "locker", err)
}

// Format prints no more than the type, whatever the verb: the fields lead to tokens.
func (l *Locker) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, "sluice.Locker") }

// newLock checks the arguments that every operation has, but the name.
func (l *Locker) newLock(op string, ctx context.Context, name string, opts []LockOption) (*Lock, error) {
	if l == nil || l.door == nil {
		return nil, invalid(op, "Locker not made by NewLocker")
	}
	if ctx == nil {
		return nil, invalid(op, "nil context")
	}
	o, err := l.options, error(nil)
	if len(opts) > 0 {
		if o, err = o.with(opts); err != nil {
			return nil, fmt.Errorf("sluice: %s: %w", op, err)
		}
	}
	if l.isClosed() {
		return nil, wrap(op, name, ErrClosed)
	}
	return &Lock{locker: l, name: name, lockOptions: o}, nil
}

// anyLock is the lock of that name, whoever holds it.
func (l *Locker) anyLock(op string, ctx context.Context, name string) (*Lock, error) {
	k, err := l.newLock(op, ctx, name, nil)
	if err != nil {
		return nil, err
	}
	if k.at, err = addressOf(k.prefix, name); err != nil {
		return nil, fmt.Errorf("sluice: %s: %w", op, err)
	}
	return k, nil
}

func (l *Locker) isClosed() bool { return isClosed(l.closed) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// commandTime is the longest time that the client spends on a command.
func commandTime(rdb redis.UniversalClient) time.Duration {
	read, write, pool := 5*time.Second, 5*time.Second, 6*time.Second // go-redis's defaults
	switch c := rdb.(type) {
	case interface{ Options() *redis.Options }:
		read, write, pool = c.Options().ReadTimeout, c.Options().WriteTimeout, c.Options().PoolTimeout
	case interface{ Options() *redis.ClusterOptions }:
		read, write, pool = c.Options().ReadTimeout, c.Options().WriteTimeout, c.Options().PoolTimeout
	}
	return max(read, 0) + max(write, 0) + max(pool, 0)
}
