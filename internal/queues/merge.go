package queues

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/groupcommit"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// Enqueue enqueues a task, perhaps as a part of a group. The payload is copied: the caller may use
// it again when its context has ended, while the call is still under way.
func (q *Queue) Enqueue(ctx context.Context, d store.Draft) (outcome int, err error) {
	known, question := q.soldOut.knows(d.ID, d.Take)
	if known {
		return store.SoldOut, nil
	}
	t := d.Enqueue()
	reply, err := merged(ctx, q, q.enqueues, t, 1, t.Size(), q.enqueueRequest)
	if err == nil && reply.Value == nil {
		reply, err = q.Executor.Run(ctx, q.enqueueRequest(t))
	}
	if err == nil {
		var one [1]int
		if _, _, err = store.AppendOutcomes(one[:0], reply.Value, 1); err == nil {
			outcome, err = one[0], reply.Shortfall
		}
	}
	if d.Take.Units > 0 {
		q.soldOut.learn(d.ID, d.Take, question, outcome, err)
	}
	if refused := refusals[outcome]; refused != nil {
		return 0, refused
	}
	return outcome, err
}

// refusals are the errors of outcomes that are none.
var refusals = map[int]error{store.OtherTake: ErrOtherTake, store.OtherGroup: ErrOtherGroup, store.Full: ErrFull, store.TooMany: ErrFull}

func (q *Queue) enqueueRequest(t store.Enqueue) redisexec.Request {
	args := q.Store.NewBatch(1, q.rules(&t), "0", 0)
	args.Add(&t)
	return q.Store.Enqueue(args)
}

// commitEnqueues sends a group of Enqueue calls, those with the same rules by one script.
func (q *Queue) commitEnqueues(calls []*mergedCall[store.Enqueue]) {
	commitAlike(calls, func(t store.Enqueue) string { return q.rules(&t).String() }, q.commitEnqueue)
}

// commitEnqueue sends Enqueue calls with the same rules. A task with a delay is due as if it were
// alone: unlike those of a batch, the tasks have no order among each other.
func (q *Queue) commitEnqueue(calls []*mergedCall[store.Enqueue]) {
	args := q.Store.NewBatch(len(calls), q.rules(&calls[0].Arg), "0", 0)
	for _, call := range calls {
		args.Add(&call.Arg)
	}
	commitGroup(q, calls, q.Store.Enqueue(args), func(result redisexec.Result) {
		list, _ := result.Value.([]any)
		for i, call := range calls {
			own := result // a reply of another form is for each to reject
			if len(list) == len(calls)+1 {
				own.Value = []any{list[0], list[i+1]}
				if list[i+1] == int64(store.TooMany) {
					own.Value = nil // it asks for itself
				}
			}
			call.Settle(own)
		}
	})
}

// EnqueueBatch enqueues n tasks in chunks, one after the other, of which each has tasks with the
// same rules. It returns an outcome for each task, in the caller's type: 0 for those that it has
// not enqueued. It asks for a task just before it is sent, three times at most.
func EnqueueBatch[O ~int](ctx context.Context, q *Queue, n int, task func(i int) store.Draft) ([]O, error) {
	outcomes := make([]O, n)
	done := outcomes[:0]
	same, floor := map[store.Due]int64{}, "0"
	for len(done) < n {
		size, args := q.pack(len(done), n, task, same, floor)
		reply, err := q.Executor.Run(ctx, q.Store.Enqueue(args))
		if err == nil {
			done, floor, err = store.AppendOutcomes(done, reply.Value, size)
		}
		if errors.Is(err, redisexec.ErrUnknown) {
			for i := range size {
				if t := task(len(done) + i); t.Take.Units > 0 {
					q.soldOut.learn(t.ID, t.Take, question{}, 0, err)
				}
			}
		}
		if err == nil {
			err = reply.Shortfall
		}
		for i, outcome := range done[max(len(done)-size, 0):] {
			if refused := refusals[int(outcome)]; refused != nil {
				done[len(done)-size+i], err = 0, cmp.Or(err, refused)
			}
		}
		if err != nil {
			return outcomes, err
		}
	}
	return outcomes, nil
}

// pack makes the arguments for a chunk: for the tasks from begin on with the rules of the first,
// the last of which is before end. same counts the tasks with the same due time, which are kept
// apart by a microsecond each: those with the same At in the whole batch, those with the same Delay
// in this chunk, since delays count from floor, which is after the tasks of the chunks before.
func (q *Queue) pack(begin, end int, task func(i int) store.Draft, same map[store.Due]int64, floor string) (n int, args *store.Batch) {
	end = min(end, begin+store.MaxGroup)
	maps.DeleteFunc(same, func(due store.Due, _ int64) bool { return due.IsDelay() })
	var rules store.Rules
	for size := 0; begin+n < end; n++ {
		t := task(begin + n)
		e := t.Enqueue()
		if n == 0 {
			rules = q.rules(&e)
			args = q.Store.NewBatch(end-begin, rules, floor, 1)
		}
		if size += len(e.Payload); n > 0 && (size > store.MaxGroupBytes || q.rules(&e) != rules) {
			break
		}
		after := same[e.Due]
		same[e.Due]++
		e.Due = e.Due.Plus(after)
		args.Add(&e)
	}
	return n, args
}

// rules returns those of a task, with the queue's policy where it has none of its own.
func (q *Queue) rules(t *store.Enqueue) store.Rules {
	r := t.Rules()
	r.Duplicates = cmp.Or(r.Duplicates, q.Options.Duplicates)
	return r
}

// Calls of Enqueue, Claim and Dequeue that come at the same time are merged: each kind is sent as
// one request. What follows is for all three.

// callsAlone is how many calls of a kind a queue has under way, each with a script of its own,
// before what comes waits and is merged.
const callsAlone = 2

// mergePatience is how long calls wait at least for what is under way.
const mergePatience = 50 * time.Millisecond

// committer sends calls with arguments of type A, each alone or merged with others. A call's result
// is its part of the group's, in the form that the script gives to a call that is sent alone.
type committer[A any] = groupcommit.Committer[A, redisexec.Result]

// mergedCall is a call in a group.
type mergedCall[A any] = groupcommit.Call[A, redisexec.Result]

// newCommitter returns a committer of a queue's, which sends groups by commit.
func newCommitter[A any](q *Queue, commit func(calls []*mergedCall[A])) *committer[A] {
	return groupcommit.New(groupcommit.Config[A, redisexec.Result]{
		Alone: callsAlone, Items: store.MaxGroup, Bytes: store.MaxGroupBytes, Patience: mergePatience, Grace: redisexec.ReplyGrace,
		Start:  q.Executor.StartFunc,
		Commit: commit,
		Lost:   redisexec.Result{Outcome: redisexec.Unknown, Err: redisexec.ErrPanicked},
	})
}

// merged is Executor.Run whose first attempt is a part of a group if there are other calls.
// Whatever came of that, the caller goes on alone: what may be tried again it tries again by
// itself, with its own context, as long as it would have been tried otherwise. So a group has no
// retries, and no caller waits for another's.
func merged[A any](ctx context.Context, q *Queue, c *committer[A], arg A, items, bytes int, r func(A) redisexec.Request) (redisexec.Reply, error) {
	first := sendFirst(ctx, q, c, arg, items, bytes, r)
	if first.Outcome == redisexec.Done {
		return redisexec.Reply{Value: first.Value, Sent: first.Sent, Shortfall: first.Shortfall}, nil
	}
	return q.Executor.Resume(ctx, r(arg), first)
}

// sendFirst makes the first attempt of a call.
func sendFirst[A any](ctx context.Context, q *Queue, c *committer[A], arg A, items, bytes int, r func(A) redisexec.Request) redisexec.Result {
	call := c.Enter(ctx, arg, items, bytes)
	if call == nil {
		defer c.Exit()
		return q.Executor.Once(ctx, r(arg))
	}
	result, err := call.Wait()
	switch {
	case err == nil:
		return result
	case errors.Is(err, groupcommit.ErrWithdrawn):
		return redisexec.Result{Outcome: redisexec.NotSent, Err: ctx.Err()}
	default:
		return redisexec.Result{Outcome: redisexec.Abandoned, Err: ctx.Err()}
	}
}

// commitAlike sends a group in parts, each of the calls with the same key, and all at the same
// time: one that hangs keeps none with another key waiting. It waits for them, which end with the
// replies. The calls of a group have no order among each other, since none had returned when the
// next came.
func commitAlike[A any, K cmp.Ordered](calls []*mergedCall[A], key func(A) K, commit func(part []*mergedCall[A])) {
	slices.SortStableFunc(calls, func(a, b *mergedCall[A]) int { return cmp.Compare(key(a.Arg), key(b.Arg)) })
	var all sync.WaitGroup
	defer all.Wait()
	for len(calls) > 0 {
		end := 1
		for end < len(calls) && key(calls[end].Arg) == key(calls[0].Arg) {
			end++
		}
		part := calls[:end]
		if calls = calls[end:]; len(calls) == 0 {
			commit(part)
			return
		}
		all.Go(func() { commit(part) })
	}
}

// leastGroupWait is how long the replicas of a group are waited for at the least, however soon the
// context of one of its callers ends: the others' tasks would count as under-replicated where a
// replica takes a moment.
const leastGroupWait = 250 * time.Millisecond

// commitGroup sends a group once, as one request. The context is no caller's: it ends with none of
// them. It has the values of the first one's, for the client's hooks.
//
// deal gives each call its part of the result, which has a reply. What became of a group without a
// reply is what became of each call.
func commitGroup[A any](q *Queue, calls []*mergedCall[A], r redisexec.Request, deal func(result redisexec.Result)) {
	for _, call := range calls {
		if at, ok := call.Ctx.Deadline(); ok {
			r = r.AnsweredBy(at, leastGroupWait)
		}
	}
	result := q.Executor.Once(context.WithoutCancel(calls[0].Ctx), r)
	if result.Outcome == redisexec.Done {
		deal(result)
		return
	}
	for _, call := range calls {
		call.Settle(result)
	}
}
