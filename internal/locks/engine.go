// Package locks is the engine of locks: it acquires a lock, hands it over, extends it and gives it
// back.
//
// An [Engine] has the locks of one process on one Redis. A [Hold] is one caller's hold of a lock, a
// [Set] several holds that are acquired together. Acquiring is in acquire.go, giving back in
// release.go. What the server gave, and how long it may be handed over for, is in grant.go.
//
// The caller has checked the arguments. Errors do not say which operation and lock they are of:
// the caller adds that.
package locks

import (
	"context"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/line"
	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/waitqueue"
)

// Engine makes the locks of one Redis. It is safe for concurrent use.
type Engine struct {
	Options  Options             // of a lock for which the caller gives none
	Executor *redisexec.Executor // of all its requests

	scripts   *store.Scripts
	notifier  *notify.Notifier
	process   *line.Process
	queues    *waitqueue.Set[*address] // by key
	permits   *waitqueue.Set[*address] // of those that wait for permits, by number and key
	apart     apartLocks
	renewer   *lease.Renewer
	janitor   *lease.Janitor
	closed    chan struct{}
	closeOnce sync.Once
}

// New returns an engine on rdb, which stays the caller's to close. It starts nothing.
func New(rdb redis.UniversalClient, scripts *store.Scripts, options Options) *Engine {
	executor, notifier := redisexec.New(rdb), notify.New(rdb)
	e := &Engine{
		Options:  options,
		Executor: executor,
		scripts:  scripts,
		notifier: notifier,
		process:  line.NewProcess(notifier),
		renewer:  lease.NewRenewer(executor),
		janitor:  lease.NewJanitor(executor),
		closed:   make(chan struct{}),
	}
	e.queues = waitqueue.New(e.newAddress)
	e.permits = waitqueue.New(func(prefix, name string) (*address, error) {
		_, prefix, _ = strings.Cut(prefix, ":") // see Hold.queuePrefix
		return e.newAddress(prefix, name)
	})
	return e
}

// Closed reports whether Close has been called.
func (e *Engine) Closed() bool { return background.IsClosed(e.closed) }

// Close releases every lock as UnlockAll does, lets every waiting Acquire return ErrClosed, and
// ends every goroutine and connection that the engine started. A second call does nothing.
func (e *Engine) Close() (holds []*Hold, errs []error) {
	e.closeOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), CloseWait)
		defer cancel()
		close(e.closed)
		e.queues.Close()
		e.permits.Close()
		e.renewer.Close() // else each release would wait for its renewal, whose connection may be dead
		holds, errs = e.UnlockAll(ctx)
		e.janitor.Close()
		e.Executor.Close(ctx)
		e.notifier.Close(ctx)
	})
	return holds, errs
}

// Len returns how many names the engine keeps track of, how many of them are held or wanted, how
// many callers wait behind others, and how many locks are held outside of the queues. It is for
// tests.
func (e *Engine) Len() (names, busy, queued, apart int) {
	names, busy, queued = e.queues.Len()
	return names, busy, queued, len(e.apart.all(""))
}

// Inspect asks the server which callers hold h's lock, and how many wait for it.
func (e *Engine) Inspect(ctx context.Context, h *Hold) (store.Inspected, error) {
	reply, err := e.Executor.Run(ctx, h.address.Inspect())
	if err != nil {
		return store.Inspected{}, err
	}
	return store.DecodeInspected(reply.Value)
}

// ForceUnlock releases h's lock, also another caller's, and reports whether it was held: by one with
// that label, if owner is not "". A holder of this Engine has lost it then.
func (e *Engine) ForceUnlock(ctx context.Context, h *Hold, owner string) (bool, error) {
	key := h.address.Key()
	// Before, so that it is not handed over meanwhile; and after, for a lock whose
	// acquisition is answered only now.
	e.queues.ForbidHandOver(key)
	reply, err := e.Executor.Run(ctx, h.address.Force(owner))
	e.queues.ForbidHandOver(key)
	if err != nil {
		return false, err
	}
	tokens, err := store.DecodeForced(reply.Value)
	if err != nil {
		return false, err
	}
	// A holder with another token has acquired the lock after it was forced open.
	if holder, _ := e.queues.Holder(key).(*Hold); holder != nil && tokens[holder.Token()] {
		holder.lose()
	}
	for _, holder := range e.apart.all(key) {
		if tokens[holder.Token()] {
			holder.lose()
		}
	}
	return len(tokens) > 0, nil
}
