package sluice

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// LockInfo is what Inspect found.
type LockInfo struct {
	// Held says that the lock is held.
	Held bool
	// TTL is when the lock is freed at the latest, unless its holder extends it. It is
	// negative for a key without TTL, which only clients of other libraries make.
	TTL time.Duration
	// Owner is the label that its holder gave with WithOwner. It is empty without one, and for a lock of another
	// library.
	Owner string
	// Permits is how many callers hold it: 1 without WithPermits. With them, TTL is that of the last one to
	// end, and Owner is empty.
	Permits int
}

// Inspect reports whether the named lock is held, for how long at most, and with which label
// (see WithOwner). It changes nothing, and what it reports may be over when it returns.
func (l *Locker) Inspect(ctx context.Context, name string) (LockInfo, error) {
	k, err := l.anyLock("inspect", ctx, name)
	if err != nil {
		return LockInfo{}, err
	}
	reply, err := l.executor.Run(ctx, scriptInspect.Request(k.address.keys, ""))
	if errors.Is(err, redisexec.ErrWrongType) {
		info, err := k.inspectPermits(ctx)
		return info, wrap("inspect", name, err)
	}
	if err != nil {
		return LockInfo{}, wrap("inspect", name, err)
	}
	ms, owner, err := decodeInspected(reply.Value)
	if left := duration(ms); err == nil && left != notHeld {
		return LockInfo{Held: true, TTL: left, Owner: owner, Permits: 1}, nil
	}
	return LockInfo{}, wrap("inspect", name, err)
}

// ForceUnlock releases the named lock, whichever client holds it, and reports whether it was held. The holder
// is not asked. If that is a lock of this Locker, it is lost at once: its Context ends with ErrLost, and the
// next waiter acquires. In another process the holder learns of it when it next extends or releases the lock
// (unless the reply to that is lost), or within two retry intervals if a caller waits behind it there; it
// believes in its lock until then, and may hand it over until the window ends of which Lock tells.
// The holder of a permit learns of it when it next extends or releases it, also one of this Locker whose Lock was about to return.
// ForceUnlock is a tool for operators. After ErrUnknown it may be called again; a holder of this Locker is
// then as one of another process.
func (l *Locker) ForceUnlock(ctx context.Context, name string) (bool, error) {
	k, err := l.anyLock("force unlock", ctx, name)
	if err != nil {
		return false, err
	}
	// Before, so that it is not handed over meanwhile; and after, for a lock whose
	// acquisition is answered only now.
	l.queues.ForbidHandOver(k.address.key)
	tokens, err := k.force(ctx)
	l.queues.ForbidHandOver(k.address.key)
	if err != nil {
		return false, wrap("force unlock", name, err)
	}
	// A holder with another token has acquired the lock after it was forced open.
	if holder, _ := l.queues.Holder(k.address.key).(*member); holder != nil && tokens[holder.lock().Token()] {
		holder.lock().lose()
	}
	for _, k := range l.apart.all(k.address.key) {
		if tokens[k.Token()] {
			k.lose()
		}
	}
	return len(tokens) > 0, nil
}

// force forces the lock open, and returns the tokens that held it: one at the most, unless it has permits.
func (k *Lock) force(ctx context.Context) (tokens map[string]bool, err error) {
	reply, err := k.locker.executor.Run(ctx, scriptForce.Request(k.address.keys, k.address.wake))
	if errors.Is(err, redisexec.ErrWrongType) {
		return k.forcePermits(ctx)
	}
	if err != nil {
		return nil, err
	}
	token, released, err := decodeForced(reply.Value)
	if !released {
		return nil, err
	}
	return map[string]bool{token: true}, err
}

// decodeForced decodes the reply of force.lua: the token that held the lock, if one did.
func decodeForced(value any) (token string, released bool, err error) {
	switch v := value.(type) {
	case string:
		return v, true, nil
	case int64:
		if v == 0 {
			return "", false, nil
		}
	}
	return "", false, redisexec.Unexpected(value)
}
