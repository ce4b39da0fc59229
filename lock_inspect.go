package sluice

import (
	"context"
	"time"

	"github.com/sluice-go/sluice/internal/store"
)

// LockInfo is what Inspect found.
type LockInfo struct {
	// Held says that the lock is held.
	Held bool
	// TTL is when the lock is freed at the latest, unless its holder extends it. It is
	// negative for a key without TTL, which only clients of other libraries make.
	TTL time.Duration
	// Owner is the label that its holder gave with WithOwner. It is empty without one, for a lock of another
	// library, and if several hold it.
	Owner string
	// Owners are the labels of those that hold it, of permits in the order in which they end. One without a label is left out.
	Owners []string
	// Permits is how many callers hold it: 1 without WithPermits. With them, TTL is that of the last one to
	// end.
	Permits int
	// Waiting is how many processes (Lockers) wait in line for it. The callers of one process count once. So does a process for
	// which the lock is reserved until it comes: it does not hold the lock yet. A process that has died counts until its
	// turn comes, or until the line ends: a minute after the last process has joined it or polled.
	Waiting int
}

// Inspect reports whether the named lock is held, for how long at most, with which label
// (see WithOwner), and how many processes wait for it. It changes nothing, and what it reports may be over when it returns.
func (l *Locker) Inspect(ctx context.Context, name string) (LockInfo, error) {
	k, err := l.anyLock("inspect", name, nil)
	if err != nil {
		return LockInfo{}, err
	}
	reply, err := l.executor.Run(ctx, k.address.Inspect())
	if err != nil {
		return LockInfo{}, wrap("inspect", name, err)
	}
	i, err := store.DecodeInspected(reply.Value)
	return lockInfo(i), wrap("inspect", name, err)
}

func lockInfo(i store.Inspected) LockInfo {
	if i.Holders == 0 {
		return LockInfo{Waiting: i.Waiting}
	}
	info := LockInfo{Held: true, TTL: i.Left, Permits: i.Holders, Waiting: i.Waiting}
	for _, owner := range i.Owners {
		if isLabel(owner) {
			info.Owners = append(info.Owners, owner)
		}
	}
	if i.Holders == 1 && len(info.Owners) == 1 {
		info.Owner = info.Owners[0]
	}
	return info
}

// ForceUnlock releases the named lock, whichever client holds it, and reports whether it was held. The holder is
// not asked. If that is a lock of this Locker, it is lost at once: its Context ends with ErrLost, and the next
// waiter acquires.
//
// In another process the holder learns of it when it next extends or releases the lock (unless the reply to that is
// lost), or within two retry intervals if a caller waits behind it there; it believes in its lock until then, and
// may hand it over until the window ends of which Lock tells. The holder of a permit learns of it when it next
// extends or releases it, also one of this Locker whose Lock was about to return. ForceUnlock is a tool for
// operators. After ErrUnknown it may be called again; a holder of this Locker is then as one of another process.
func (l *Locker) ForceUnlock(ctx context.Context, name string) (bool, error) {
	k, err := l.anyLock("force unlock", name, nil)
	if err != nil {
		return false, err
	}
	// Before, so that it is not handed over meanwhile; and after, for a lock whose
	// acquisition is answered only now.
	l.queues.ForbidHandOver(k.address.Key())
	reply, err := l.executor.Run(ctx, k.address.Force())
	l.queues.ForbidHandOver(k.address.Key())
	var tokens map[string]bool
	if err == nil {
		tokens, err = store.DecodeForced(reply.Value)
	}
	if err != nil {
		return false, wrap("force unlock", name, err)
	}
	// A holder with another token has acquired the lock after it was forced open.
	if holder, _ := l.queues.Holder(k.address.Key()).(*member); holder != nil && tokens[holder.lock().Token()] {
		holder.lock().lose()
	}
	for _, k := range l.apart.all(k.address.Key()) {
		if tokens[k.Token()] {
			k.lose()
		}
	}
	return len(tokens) > 0, nil
}
