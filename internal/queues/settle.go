package queues

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/taskloop"
)

// Settle ends leases, all with the same disposition. It returns the IDs of the tasks whose receipts
// are stale.
func (q *Queue) Settle(ctx context.Context, items []store.Item) (stale []string, failed error) {
	for part := range slices.Chunk(items, store.MaxGroup) {
		reply, err := q.runSettle(ctx, part)
		var answers []store.Answer
		if err == nil {
			answers, err = store.DecodeReport(reply.Value, part)
		}
		if err != nil {
			return stale, err
		}
		for i, answer := range answers {
			switch {
			case answer.IsAccepted():
			case answer == store.Malformed:
				failed = redisexec.ErrCorrupt
			case reply.Ambiguous:
				failed = errAmbiguousReceipt
			default:
				stale = append(stale, part[i].ID)
			}
		}
		if reply.Shortfall != nil {
			return stale, cmp.Or(failed, reply.Shortfall)
		}
	}
	return stale, failed
}

// runSettle ends the leases of a group. What finishes tasks may be a part of a larger group.
func (q *Queue) runSettle(ctx context.Context, items []store.Item) (redisexec.Reply, error) {
	if items[0].Disposition.Settler() != store.ByExchange {
		return q.Executor.Run(ctx, q.Store.Settle(items))
	}
	bytes := 0
	for _, i := range items {
		bytes += len(i.ID)
	}
	return merged(ctx, q, q.dequeues, items, len(items), bytes, q.Store.Settle)
}

// commitDequeues sends a group of Dequeue calls, those with the same receipt together.
func (q *Queue) commitDequeues(calls []*mergedCall[[]store.Item]) {
	slices.SortStableFunc(calls, func(a, b *mergedCall[[]store.Item]) int {
		return strings.Compare(a.Arg[0].Receipt, b.Arg[0].Receipt)
	})
	items := make([]store.Item, 0, len(calls))
	for _, call := range calls {
		items = append(items, call.Arg...)
	}
	commitGroup(q, calls, q.Store.Settle(items), func(result redisexec.Result) {
		x, err := store.DecodeExchange(result.Value, len(items))
		for _, call := range calls {
			own := result // a reply of another form is for each to reject
			if n := len(call.Arg); err == nil {
				own.Value, x.Answers = store.Exchanged{Answers: x.Answers[:n:n]}, x.Answers[n:]
			}
			call.Settle(own)
		}
	})
}

// claiming returns the request that finishes tasks and claims up to n others. The client asks for a
// place in line with it.
func (q *Queue) claiming(finish []store.Item, n int, lease time.Duration, worker string) redisexec.Request {
	return q.Store.Exchange(finish, store.Claim{N: n, Lease: lease, Worker: worker, Asking: q.watcher.Ask(n, worker != "")})
}

// Extend gives a claimed task a new lease from now.
func (q *Queue) Extend(ctx context.Context, item store.Item, ttl time.Duration) error {
	answers, err := ask(ctx, q, q.Store.Extend(ttl, item), func(value any) ([]store.Answer, error) {
		return store.DecodeExtended(value, 1)
	})
	switch {
	case err != nil:
		return err
	case answers[0] == store.Malformed:
		return redisexec.ErrCorrupt
	case answers[0] != store.Accepted: // an extension does not use the receipt up: it was stale before
		return ErrStale
	}
	return nil
}

// itemsOf returns claimed tasks as they are given back.
func itemsOf(ts []store.Task) []store.Item {
	items := make([]store.Item, len(ts))
	for i, t := range ts {
		items[i] = store.Item{ID: t.ID, Receipt: store.ScoreText(t.Score), Disposition: store.Disposition{Action: store.Release}}
	}
	return items
}

// Keep extends the lease of a task at once, and then again and again until end is called. held ends
// with ctx, and when the lease is lost; it knows of the lease, see LeaseValid of the root. end
// returns why the lease was lost, or nil.
func (q *Queue) Keep(ctx context.Context, item store.Item, ttl time.Duration) (held context.Context, end func() error, err error) {
	k := &kept{queue: q, item: item, ttl: ttl}
	sent := time.Now()
	if err := q.Extend(ctx, item, ttl); err != nil {
		return nil, nil, err
	}
	until := lease.SafeUntil(sent, ttl)
	k.lease.Begin(sent, until, until, 0)
	if !k.lease.Valid() {
		return nil, nil, errLateExtension
	}
	q.renewer.Add(k)
	held, cancel := context.WithCancelCause(lease.WithHolding(ctx, &k.lease))
	ended := k.lease.Context()
	stop := context.AfterFunc(ended, func() { cancel(context.Cause(ended)) })
	return held, func() error {
		stop()
		q.renewer.Forget(k)
		k.lease.End(nil)
		cancel(nil)
		return k.lease.Cause()
	}, nil
}

// kept is a task whose lease is extended while a function works on it: a lease.Renewable.
type kept struct {
	queue *Queue
	item  store.Item
	ttl   time.Duration
	lease lease.Lease
}

func (k *kept) TTL() time.Duration  { return k.ttl }
func (k *kept) Deadline() time.Time { return k.lease.Deadline() }
func (k *kept) Renewable() bool     { return k.lease.Renewable() }
func (k *kept) Key() any            { return k.queue.Store.RoutingKey() }
func (k *kept) Replicas() any       { return nil }

// Extension returns the request that extends the lease.
func (k *kept) Extension() (redisexec.Request, bool) {
	return k.queue.Store.Extend(k.ttl, k.item), k.lease.Valid()
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
		k.lease.End(taskloop.ErrCanceled)
	default:
		k.lease.End(lease.ErrLost)
	}
	return false
}
