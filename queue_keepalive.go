package sluice

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// KeepAlive runs fn, the work on a claimed task, and keeps the task the caller's meanwhile: it extends the lease at
// once, and then at a third of it until fn returns, together with the leases of other callers on this Queue.
//
// It is what a Worker does for its handlers. The caller then says what became of the task, with Dequeue, Retry,
// Release or Bury; fn must not.
//
// The context that fn gets ends with ctx, and by itself when the task is not the caller's
// any more: with the cause ErrLost before the lease can end on the server, or with
// ErrCanceled when the task was cancelled. KeepAlive then joins that cause to fn's error.
// Otherwise it returns fn's error as it is.
//
// If the first extension fails, fn is not called: ErrStale if the task is not the caller's, as when its lease
// ended before, or e was read by Peek or Get and never claimed; ErrLost if the reply came too late; what
// Extend returns else. KeepAlive does not end before fn does. It leaves nothing behind, except an extension
// under way: one that comes to the server after the caller's word on the task is stale.
func (q *Queue) KeepAlive(ctx context.Context, e Entry, lease time.Duration, fn func(ctx context.Context) error) (err error) {
	if fn == nil {
		return invalid("keep alive", "nil function")
	}
	k := &kept{queue: q, entry: e, ttl: lease}
	if err := k.begin(ctx); err != nil {
		return err
	}
	renewer := q.keeper.enter(q.executor)
	renewer.Add(k)
	held := k.lease.Context()
	fnCtx, cancel := context.WithCancelCause(k.knownTo(ctx))
	stop := context.AfterFunc(held, func() { cancel(context.Cause(held)) })
	defer func() {
		stop()
		renewer.Forget(k)
		q.keeper.exit(renewer)
		k.lease.End(nil)
		cancel(nil)
		if lost := k.lease.Cause(); lost != nil {
			err = errors.Join(err, wrap("keep alive", q.name, lost))
		}
	}()
	return fn(fnCtx)
}

// kept is a task whose lease is extended while a function works on it: a lease.Renewable.
type kept struct {
	queue *Queue
	entry Entry
	ttl   time.Duration
	lease lease.Lease
}

// begin sends the first extension.
func (k *kept) begin(ctx context.Context) error {
	sent := time.Now()
	if err := k.queue.extend(ctx, "keep alive", k.entry, k.ttl); err != nil {
		return err
	}
	until := lease.SafeUntil(sent, k.ttl)
	k.lease.Begin(sent, until, until, 0)
	if !k.lease.Valid() {
		return wrap("keep alive", k.queue.name, fmt.Errorf("%w: the reply took longer than the lease", ErrLost))
	}
	return nil
}

// knownTo returns a context that knows of the lease; see LeaseValid.
func (k *kept) knownTo(ctx context.Context) context.Context { return lease.WithHolding(ctx, &k.lease) }

func (k *kept) TTL() time.Duration  { return k.ttl }
func (k *kept) Deadline() time.Time { return k.lease.Deadline() }
func (k *kept) Renewable() bool     { return k.lease.Renewable() }
func (k *kept) Key() any            { return k.queue.store.RoutingKey() }

// Extension returns the request that extends the lease.
func (k *kept) Extension() (redisexec.Request, bool) {
	item := store.Item{ID: k.entry.ID, Receipt: receiptOf(k.entry)}
	return k.queue.store.Extend(k.ttl, item), k.lease.Valid()
}

// HandleExtension takes the result of an extension.
func (k *kept) HandleExtension(sent time.Time, r redisexec.Result) bool {
	if r.Outcome != redisexec.Done { // it is tried again until the deadline
		return false
	}
	answers, err := store.DecodeExtended(r.Value, 1)
	switch {
	case err != nil:
		return false
	case answers[0] == store.Accepted:
		until := lease.SafeUntil(sent, k.ttl)
		return k.lease.Extend(until, until)
	case answers[0] == store.Gone:
		k.lease.End(ErrCanceled)
	default:
		k.lease.End(ErrLost)
	}
	return false
}

// keeper has the renewer of a queue's calls of KeepAlive. There is one only while there are
// such calls, so that its loop ends with the last of them.
type keeper struct {
	mu      sync.Mutex // guards what follows
	renewer *lease.Renewer
	calls   int
}

func (k *keeper) enter(executor *redisexec.Executor) *lease.Renewer {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.calls == 0 {
		k.renewer = lease.NewRenewer(executor)
	}
	k.calls++
	return k.renewer
}

func (k *keeper) exit(renewer *lease.Renewer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.calls--; k.calls == 0 {
		renewer.Close()
		k.renewer = nil
	}
}
