package queues

import (
	"context"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// Claim claims up to n tasks, in steps.
func (q *Queue) Claim(ctx context.Context, n int, lease time.Duration) (tasks []store.Task, err error) {
	c := claiming{lease: lease, began: time.Now()}
	for more := true; more && err == nil && c.mayGoOn(n); {
		var sent time.Time
		asked := time.Now()
		more, sent, tasks, err = q.claimStep(ctx, min(n-c.count, store.MaxGroup), lease)
		c.add(asked, sent, tasks)
	}
	if tasks = c.keepValid(ctx, q); err == nil && len(tasks) == 0 && c.count > 0 {
		err = errLateClaim
	}
	return tasks, err
}

// giveBackFor bounds how long Claim tries to give back what it does not return.
const giveBackFor = 5 * time.Second

// keepValid returns the tasks that are the caller's, and has the others given back. If they
// were leased again and again to no caller, that would use up their attempts. A release that
// comes too late is stale, and changes nothing.
//
// If there are no tasks, it waits for as long as another reply may take: the caller is
// likely to claim again at once, and that must not come to the server before the release.
func (c *claiming) keepValid(ctx context.Context, q *Queue) []store.Task {
	valid, late := c.sort()
	if len(late) == 0 {
		return valid
	}
	released := q.giveBack(ctx, late)
	if len(valid) > 0 {
		return valid
	}
	select {
	case <-released:
	case <-time.After(2 * c.slowest):
	case <-ctx.Done():
	}
	return nil
}

// giveBack has tasks released in the background, and returns a channel that is closed when they
// were, or when that has failed: the goroutine ends after giveBackFor at most. Its caller may wait
// for it.
func (q *Queue) giveBack(ctx context.Context, ts []store.Task) <-chan struct{} {
	released := make(chan struct{})
	q.Executor.Go(func() {
		defer close(released)
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackFor)
		defer cancel()
		_, _ = q.Settle(detached, itemsOf(ts))
	})
	return released
}

// claiming is a Claim in one or more steps. The leases of the first step run while the
// others are under way.
type claiming struct {
	lease   time.Duration
	began   time.Time     // also the first lease, or before
	slowest time.Duration // of the steps so far
	steps   []claimStep
	count   int // tasks so far
}

// claimStep is what one step has claimed.
type claimStep struct {
	until time.Time // the tasks are the caller's until then
	tasks []store.Task
}

// mayGoOn reports whether fewer than n tasks were claimed, and a step as slow as the
// slowest would end within half of the first step's lease.
func (c *claiming) mayGoOn(n int) bool {
	return c.count < n && (c.steps == nil || time.Since(c.began)+c.slowest < c.lease/2)
}

// add adds what a step has claimed that was asked for and sent at these times. It may be sent
// before it was asked for: see commitClaims.
func (c *claiming) add(asked, sent time.Time, tasks []store.Task) {
	c.began = backoff.Sooner(c.began, sent)
	c.slowest = max(c.slowest, time.Since(backoff.Sooner(asked, sent)))
	c.steps = append(c.steps, claimStep{lease.SafeUntil(sent, c.lease), tasks})
	c.count += len(tasks)
}

// sort returns the tasks whose leases have not ended, and those whose have, each ID once. A
// server whose clock was set forward may have handed out an ID again: its last receipt is the
// good one.
func (c *claiming) sort() (valid, late []store.Task) {
	now := time.Now()
	if len(c.steps) == 1 && now.Before(c.steps[0].until) {
		return c.steps[0].tasks, nil
	}
	last := make(map[string]int, c.count) // the step that claimed an ID last
	for i, s := range c.steps {
		for _, e := range s.tasks {
			last[e.ID] = i
		}
	}
	for i, s := range c.steps {
		for _, e := range s.tasks {
			switch {
			case last[e.ID] != i:
			case now.Before(s.until):
				valid = append(valid, e)
			default:
				late = append(late, e)
			}
		}
	}
	return valid, late
}

// claimArg is what a Claim asks for.
type claimArg struct {
	n     int
	lease time.Duration
}

// claimStep claims up to n tasks, perhaps as a part of a group, and reports whether there may be
// more. sent is the time just before the claim went out.
func (q *Queue) claimStep(ctx context.Context, n int, lease time.Duration) (more bool, sent time.Time, tasks []store.Task, err error) {
	mark, asked := q.watcher.Mark(), time.Now()
	arg := claimArg{n, lease}
	reply, err := merged(ctx, q, q.claims, arg, n, 0, q.claimRequest)
	if err != nil {
		return false, time.Now(), nil, err
	}
	x, err := store.DecodeExchange(reply.Value, 0)
	if err != nil {
		return false, reply.Sent, nil, err
	}
	if reply.Sent.Before(asked) { // the mark is too late for what it says of the next task
		q.watcher.Popped(len(x.Tasks) > 0, false)
	} else {
		q.watcher.Claimed(mark, reply.Sent, x.Head, len(x.Tasks) > 0)
	}
	q.Store.Claimed(&x)
	return x.More, reply.Sent, x.Tasks, nil
}

// commitClaims sends a group of Claim calls, those with the same lease as one claim.
func (q *Queue) commitClaims(calls []*mergedCall[claimArg]) {
	commitAlike(calls, func(c claimArg) time.Duration { return c.lease }, q.commitClaim)
}

// commitClaim sends Claim calls with one lease as one, and deals out what it returns in the order
// of asking. What is left, because callers have left, is given back before the calls that wait are
// sent: else it would be leased to no caller until the lease ends.
func (q *Queue) commitClaim(calls []*mergedCall[claimArg]) {
	all := claimArg{lease: calls[0].Arg.lease}
	for _, call := range calls {
		all.n += call.Arg.n
	}
	commitGroup(q, calls, q.claimRequest(all), func(result redisexec.Result) {
		x, err := store.DecodeExchange(result.Value, 0)
		for _, call := range calls {
			left := x
			own := redisexec.Result{Value: left.Cut(call.Arg.n), Sent: result.Sent}
			if err != nil {
				own.Value = result.Value // for each to reject
			}
			if call.Settle(own) {
				x = left
			}
		}
		if len(x.Tasks) > 0 {
			q.Store.Claimed(&x)
			<-q.giveBack(calls[0].Ctx, x.Tasks)
		}
	})
}

func (q *Queue) claimRequest(c claimArg) redisexec.Request { return q.claiming(nil, c.n, c.lease, "") }

// Pop takes up to n tasks out, in steps.
func (q *Queue) Pop(ctx context.Context, n int) (popped []store.Task, err error) {
	q.watcher.Pops()
	isLimited := false
	for more := true; more && err == nil && len(popped) < n; {
		var reply redisexec.Reply
		var tasks []store.Task
		if reply, err = q.Executor.Run(ctx, q.Store.Pop(min(n-len(popped), store.MaxGroup))); err == nil {
			tasks, more, isLimited, err = store.DecodePopped(reply.Value)
		}
		if len(tasks) > 0 {
			err = reply.Shortfall
		}
		popped = append(popped, tasks...)
	}
	if err == nil || len(popped) > 0 {
		q.watcher.Popped(len(popped) > 0, isLimited)
	}
	return popped, err
}
