// Package queues is the engine of queues: it enqueues tasks, claims them, and says what becomes of
// them.
//
// A [Queue] is one queue, as one object of the caller's. A [Worker] is a run of a worker on it: it
// connects the loop of package taskloop with the queue, and has the periodic tasks. Calls that many
// goroutines make at the same time are sent together: see merge.go.
//
// The caller has checked the arguments. Errors do not say which operation and queue they are of:
// the caller adds that.
package queues

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/watch"
)

// Options are those of a queue.
type Options struct {
	store.QueueOptions
	Duplicates string        // the policy for duplicates, as enqueue.lua knows it
	Poll       time.Duration // how often it is looked at while a caller waits
}

// Queue is a queue. It is safe for concurrent use.
type Queue struct {
	Name     string
	Options  Options
	Store    *store.Queue
	Executor *redisexec.Executor // the client's

	client  *watch.Client
	watcher *watch.Watcher
	renewer *lease.Renewer // of calls of KeepAlive; its loop ends when it has nothing to do

	enqueues *committer[store.Enqueue]
	dequeues *committer[[]store.Item]
	claims   *committer[claimArg]

	soldOut  soldOut
	awaiting *awaiting

	// concluded has what is to become of occurrences whose handlers have returned, by the ID of the
	// periodic task: see conclusion.
	concluded sync.Map
}

// New returns the queue with that name and main key. It starts nothing.
func New(client *watch.Client, name, key string, o Options) *Queue {
	q := &Queue{Name: name, Options: o, Executor: client.Executor, client: client}
	q.Store, q.renewer = store.NewQueue(client.Scripts, key, o.QueueOptions), lease.NewRenewer(q.Executor)
	q.watcher = client.Watcher(q.Store, o.Poll)
	q.enqueues, q.dequeues, q.claims = newCommitter(q, q.commitEnqueues), newCommitter(q, q.commitDequeues), newCommitter(q, q.commitClaims)
	q.awaiting = newAwaiting(q)
	return q
}

// Wait waits until a task may be due.
func (q *Queue) Wait(ctx context.Context) error { return q.watcher.Wait(ctx, q.Options.Poll) }

var (
	// ErrStale says that a receipt is no longer good: see the root's.
	ErrStale = errors.New("stale receipt")
	// ErrNotFound says that there is no such task, or stock.
	ErrNotFound = errors.New("not found")
	// ErrOtherTake says that a task of that ID holds other units, or none.
	ErrOtherTake = fmt.Errorf("%w: Take: there is a task of that ID that holds units of another Item, or none", store.ErrInvalid)
	// ErrOtherGroup says that a task of that ID is in another group, or in none.
	ErrOtherGroup = fmt.Errorf("%w: Group: there is a task of that ID in another group, or in none", store.ErrInvalid)
	// ErrFull says that the queue has as many tasks as its producer allows.
	ErrFull = errors.New("the queue is full")
	// errAmbiguousReceipt is the error of a receipt that is stale after a reply to the same request
	// was lost. Perhaps it was this request that used the receipt up.
	errAmbiguousReceipt = fmt.Errorf("%w: a reply was lost, and the receipt is stale now", redisexec.ErrUnknown)
	// errLateClaim is the error of a Claim that had tasks, and returns none.
	errLateClaim = fmt.Errorf("%w: the replies took longer than the lease", lease.ErrLost)
	// errLateExtension is the error of a first extension whose reply came too late.
	errLateExtension = fmt.Errorf("%w: the reply took longer than the lease", lease.ErrLost)
)

// ask carries out a request, and returns what decode reads in the reply: also beside the error that
// too few replicas have acknowledged the request.
func ask[T any](ctx context.Context, q *Queue, r redisexec.Request, decode func(value any) (T, error)) (answer T, err error) {
	reply, err := q.Executor.Run(ctx, r)
	if err != nil {
		return answer, err
	}
	if answer, err = decode(reply.Value); err == nil {
		err = reply.Shortfall
	}
	return answer, err
}

// Change carries out a request whose reply says nothing.
func (q *Queue) Change(ctx context.Context, r redisexec.Request) error {
	_, err := ask(ctx, q, r, func(any) (struct{}, error) { return struct{}{}, nil })
	return err
}

// Cancel removes tasks in steps, and returns the states in which they were: of those in the steps that
// came before an error.
func (q *Queue) Cancel(ctx context.Context, ids []string, scores []float64) (states []store.State, err error) {
	channel := q.client.Notifier.Argument(q.Store.CanceledChannel())
	for len(ids) > 0 {
		n := min(len(ids), store.MaxGroup)
		of := min(len(scores), n)
		were, err := ask(ctx, q, q.Store.Cancel(ids[:n], scores[:of], channel), func(value any) ([]store.State, error) { return store.DecodeStates(value, n) })
		states, ids, scores = append(states, were...), ids[n:], scores[of:]
		if err != nil || slices.ContainsFunc(were, func(s store.State) bool { return s != store.StateAbsent }) { // perhaps it has put units back
			q.soldOut.forget()
		}
		if err != nil {
			return states, err
		}
	}
	return states, nil
}

// Restore puts tasks into the queue as they were, in steps, and returns the outcomes of those in the
// steps that came before an error.
func Restore[O ~int](ctx context.Context, q *Queue, tasks []store.Restored) (outcomes []O, err error) {
	for len(tasks) > 0 {
		n, size := 1, tasks[0].Size()
		for n < min(len(tasks), store.MaxGroup) && size+tasks[n].Size() <= store.MaxGroupBytes {
			size += tasks[n].Size()
			n++
		}
		some, err := ask(ctx, q, q.Store.Restore(tasks[:n]), func(value any) ([]O, error) { return store.DecodeRestored[O](value, n) })
		outcomes, tasks = append(outcomes, some...), tasks[n:]
		if err != nil {
			return outcomes, err
		}
	}
	return outcomes, nil
}

// Reschedule has a task due in d, and reports whether there was one.
func (q *Queue) Reschedule(ctx context.Context, id string, d time.Duration) (bool, error) {
	return ask(ctx, q, q.Store.Reschedule(id, d), store.DecodeRescheduled)
}

// Revive puts dead letters back into the queue. It returns how many it has.
func (q *Queue) Revive(ctx context.Context, ids []string) (int, error) {
	return q.eachLetter(ctx, ids, q.Store.Revive)
}

// Drop removes dead letters. It returns how many it has.
func (q *Queue) Drop(ctx context.Context, ids []string) (int, error) {
	defer q.soldOut.forget()
	return q.eachLetter(ctx, ids, q.Store.Drop)
}

// eachLetter changes dead letters in steps. It returns how many it has.
func (q *Queue) eachLetter(ctx context.Context, ids []string, request func(ids []string) redisexec.Request) (changed int, err error) {
	for part := range slices.Chunk(ids, store.MaxGroup) {
		n, err := ask(ctx, q, request(part), func(value any) (int, error) { return store.DecodeChanged(value, len(part)) })
		changed += n
		if err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// Stats counts the queue's tasks.
func (q *Queue) Stats(ctx context.Context) (store.Stats, error) {
	return ask(ctx, q, q.Store.Stats(), store.DecodeStats)
}

// Get returns a task, with its payload as p says.
func (q *Queue) Get(ctx context.Context, id string, p store.Payloads) (store.Info, error) {
	return ask(ctx, q, q.Store.Get(p, store.Wanted{ID: id}), func(value any) (store.Info, error) {
		_, found, err := store.DecodeGot(value, id)
		switch {
		case err != nil:
			return store.Info{}, err
		case len(found) != 1:
			return store.Info{}, redisexec.ErrCorrupt
		case found[0].State == store.StateAbsent:
			return store.Info{}, ErrNotFound
		}
		return found[0], nil
	})
}

// Peek returns the first n due tasks, and those read before beside an error.
func (q *Queue) Peek(ctx context.Context, n int) (tasks []store.Task, err error) {
	l := store.Listing{State: store.StateDue, Payloads: store.AllPayloads, Moves: "due"}
	for t, err := range q.List(ctx, l, store.Cursor{}, n) {
		if err != nil {
			return tasks, err
		}
		tasks = append(tasks, t.Task)
	}
	q.Store.Holds(tasks)
	return tasks, nil
}

// List returns the first n tasks of a list behind one, and the error that ends them. It reads them
// page by page, as they are taken.
func (q *Queue) List(ctx context.Context, l store.Listing, after store.Cursor, n int) iter.Seq2[store.Info, error] {
	return func(yield func(store.Info, error) bool) {
		for left, after := n, after; left > 0; {
			reply, err := q.Executor.Run(ctx, q.Store.List(l, after, min(left, store.MaxGroup)))
			var page []store.Info
			if err == nil {
				after, page, err = store.DecodeListed(l.State, reply.Value)
			}
			if err != nil {
				yield(store.Info{}, err)
				return
			}
			for _, t := range page {
				if !yield(t, nil) {
					return
				}
			}
			if left -= len(page); after == (store.Cursor{}) {
				return
			}
		}
	}
}
