package sluice

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// Claim leases up to n due tasks, earliest first: they are the caller's until the lease ends. The caller then says
// what becomes of each with Dequeue, Retry, Release or Bury. A task of which it says nothing is due again when its
// lease ends.
//
// To find nothing due is no error. KeepAlive keeps the lease while the caller works.
//
// Tasks that were claimed as often as WithMaxAttempts allows go to the dead letters
// instead, as do entries that are not the library's; fewer than n may be returned then.
// More than 250 tasks, or a megabyte of payload, are claimed in several steps; if one
// fails, the tasks claimed before are returned beside the error. Claim begins no step that
// might end after half of the lease, which leaves the caller the other half: again, fewer
// than n may be returned. No task is returned twice, or after its lease: those whose leases
// had ended before the replies came are given back, and the attempt does not count. That is
// tried for 5s in the background; Claim waits for it if it returns no task, for twice as long
// as a reply has taken at most. ErrLost says that the leases of all had ended: claim fewer, or
// for longer. After ErrUnknown tasks may be leased to no caller: they are due again when the
// lease ends.
//
// Calls of many goroutines on one Queue with the same lease at the same time are sent together,
// by one script; who has asked first is given the first tasks.
func (q *Queue) Claim(ctx context.Context, n int, lease time.Duration) ([]Entry, error) {
	if err := checkDuration("lease", lease); err != nil {
		return nil, fmt.Errorf("sluice: claim: %w", err)
	}
	if err := q.checkCount("claim", n); err != nil {
		return nil, err
	}
	entries, err := q.claim(ctx, n, lease)
	q.noteClaimed(entries)
	return entries, wrap("claim", q.name, err)
}

// claim claims up to n tasks, in steps.
func (q *Queue) claim(ctx context.Context, n int, lease time.Duration) ([]Entry, error) {
	c := claiming{lease: lease, began: time.Now()}
	for more := true; more && c.mayGoOn(n); {
		asked := time.Now()
		again, sent, entries, err := q.claimStep(ctx, min(n-c.count, maxGroup), lease)
		c.add(asked, sent, entries)
		if err != nil {
			return c.keepValid(ctx, q.giveBack), err
		}
		more = again
	}
	entries := c.keepValid(ctx, q.giveBack)
	if len(entries) == 0 && c.count > 0 {
		return nil, errLateClaim
	}
	return entries, nil
}

// errLateClaim is the error of a Claim that had tasks, and returns none.
var errLateClaim = fmt.Errorf("%w: the replies took longer than the lease", ErrLost)

// giveBackFor bounds how long Claim tries to give back what it does not return.
const giveBackFor = 5 * time.Second

// keepValid returns the entries that are the caller's, and has the others given back. If they
// were leased again and again to no caller, that would use up their attempts. A release that
// comes too late is stale, and changes nothing.
//
// If there are no entries, it waits for as long as another reply may take: the caller is
// likely to claim again at once, and that must not come to the server before the release.
func (c *claiming) keepValid(ctx context.Context, giveBack func(ctx context.Context, es []Entry) <-chan struct{}) []Entry {
	valid, late := c.sort()
	if len(late) == 0 {
		return valid
	}
	released := giveBack(ctx, late)
	if len(valid) > 0 {
		return valid
	}
	timer := time.NewTimer(2 * c.slowest)
	defer timer.Stop()
	select {
	case <-released:
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}

// giveBack has tasks released in the background, and returns a channel that is closed when
// they were, or when that has failed: the goroutine ends after giveBackFor at most. Its caller may wait for it.
func (q *Queue) giveBack(ctx context.Context, es []Entry) <-chan struct{} {
	released := make(chan struct{})
	q.executor.Go(func() {
		defer close(released)
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackFor)
		defer cancel()
		_ = q.Release(detached, es...)
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
	until   time.Time // the entries are the caller's until then
	entries []Entry
}

// mayGoOn reports whether fewer than n tasks were claimed, and a step as slow as the
// slowest would end within half of the first step's lease.
func (c *claiming) mayGoOn(n int) bool {
	return c.count < n && (c.steps == nil || time.Since(c.began)+c.slowest < c.lease/2)
}

// add adds what a step has claimed that was asked for and sent at these times. It may be sent
// before it was asked for: see commitClaims.
func (c *claiming) add(asked, sent time.Time, entries []Entry) {
	if sent.Before(asked) {
		asked = sent
	}
	if sent.Before(c.began) {
		c.began = sent
	}
	c.slowest = max(c.slowest, time.Since(asked))
	c.steps = append(c.steps, claimStep{lease.SafeUntil(sent, c.lease), entries})
	c.count += len(entries)
}

// sort returns the entries whose leases have not ended, and those whose have, each ID once. A
// server whose clock was set forward may have handed out an ID again: its last receipt is the
// good one.
func (c *claiming) sort() (valid, late []Entry) {
	now := time.Now()
	if len(c.steps) == 1 && now.Before(c.steps[0].until) {
		return c.steps[0].entries, nil
	}
	last := make(map[string]int, c.count) // the step that claimed an ID last
	for i, s := range c.steps {
		for _, e := range s.entries {
			last[e.ID] = i
		}
	}
	for i, s := range c.steps {
		for _, e := range s.entries {
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

// claimStep claims up to n tasks, perhaps as a part of a group, and reports whether there may be more. sent is the time just before the
// claim went out.
func (q *Queue) claimStep(ctx context.Context, n int, lease time.Duration) (more bool, sent time.Time, entries []Entry, err error) {
	mark, asked := q.watcher.Mark(), time.Now()
	reply, err := runMerged(ctx, q, q.claims, claimArg{n, lease}, n, 0, q.claimRequest)
	if err != nil {
		return false, time.Now(), nil, err
	}
	x, err := exchangedFor(reply.Value)
	if err != nil {
		return false, reply.Sent, nil, err
	}
	if reply.Sent.Before(asked) { // the mark is too late for what it says of the next task
		q.watcher.Popped(len(x.Tasks) > 0, false)
	} else {
		q.watcher.Claimed(mark, reply.Sent, x.Head, len(x.Tasks) > 0)
	}
	return x.More, reply.Sent, x.Tasks, nil
}

// commitClaims sends a group of Claim calls, those with the same lease as one claim, and all of these at the same time: one that
// hangs keeps none of another lease waiting. It waits for them, which end with the replies.
func (q *Queue) commitClaims(calls []*mergedCall[claimArg]) {
	slices.SortStableFunc(calls, func(a, b *mergedCall[claimArg]) int { return cmp.Compare(a.Arg.lease, b.Arg.lease) })
	var all sync.WaitGroup
	defer all.Wait()
	for len(calls) > 0 {
		arg, end := claimArg{lease: calls[0].Arg.lease}, 0
		for ; end < len(calls) && calls[end].Arg.lease == arg.lease; end++ {
			arg.n += calls[end].Arg.n
		}
		some := calls[:end]
		if calls = calls[end:]; len(calls) == 0 {
			q.commitClaim(some, arg)
			return
		}
		all.Go(func() { q.commitClaim(some, arg) })
	}
}

// commitClaim sends Claim calls as one, and deals out what it returns in the order of asking. What is left, because
// callers have left, is given back before the calls that wait are sent: else it would be leased to no caller until the
// lease ends.
func (q *Queue) commitClaim(calls []*mergedCall[claimArg], all claimArg) {
	commitGroup(q, calls, q.claimRequest(all), func(result redisexec.Result, sent time.Time) {
		x, err := store.DecodeExchange(result.Value, 0, entryOf)
		for _, call := range calls {
			left := x
			m := mergedResult{redisexec.Result{Value: left.Cut(call.Arg.n)}, sent}
			if err != nil {
				m.Value = result.Value // for each to reject
			}
			if call.Settle(m) {
				x = left
			}
		}
		if len(x.Tasks) > 0 {
			<-q.giveBack(calls[0].Ctx, x.Tasks)
		}
	})
}

func (q *Queue) claimRequest(c claimArg) redisexec.Request {
	return q.claiming(nil, c.n, c.lease, "")
}

// Pop takes up to n due tasks out of the queue, earliest first. A task is handed to one caller at most, and lost if
// that caller dies: use Claim where that matters.
//
// More than 250, or a megabyte of payload, are taken in several steps; if one fails, the tasks taken before are
// returned beside the error. An ID that is enqueued between two
// steps may be returned again: it is a new task. After ErrUnknown up to n tasks may be lost.
func (q *Queue) Pop(ctx context.Context, n int) ([]Entry, error) {
	if err := q.checkCount("pop", n); err != nil {
		return nil, err
	}
	entries, err := q.pop(ctx, n)
	q.noteClaimed(entries)
	return entries, wrap("pop", q.name, err)
}

// pop takes up to n tasks out, in steps.
func (q *Queue) pop(ctx context.Context, n int) (popped []Entry, err error) {
	q.watcher.Pops()
	isLimited := false
	for more := true; more && err == nil && len(popped) < n; {
		var entries []Entry
		more, isLimited, entries, err = q.popStep(ctx, min(n-len(popped), maxGroup))
		popped = append(popped, entries...)
	}
	if err == nil || len(popped) > 0 {
		q.watcher.Popped(len(popped) > 0, isLimited)
	}
	return popped, err
}

// popStep takes up to n tasks out by one script, and reports whether there may be more, and whether a pause or limits keep those.
func (q *Queue) popStep(ctx context.Context, n int) (more, isLimited bool, entries []Entry, err error) {
	reply, err := q.executor.Run(ctx, q.store.Pop(n))
	if err != nil {
		return false, false, nil, err
	}
	if entries, more, isLimited, err = store.DecodePopped(reply.Value, entryOf); len(entries) > 0 {
		err = reply.Shortfall
	}
	return more, isLimited, entries, err
}

// Peek reads up to n due tasks, earliest first. It changes nothing, and nothing keeps other callers from taking
// them: Dequeue reports whether one did.
//
// It reads on past what Claim and Pop would set aside, so a queue that is only ever peeked at needs a Claim now and
// then.
//
// More than 250 tasks, or a megabyte of payload, are read in several steps. Each goes on
// behind the last task of the one before, whatever has come or gone meanwhile: no task that
// stays is missed or returned twice. If a step fails, the tasks read before are returned
// beside the error.
func (q *Queue) Peek(ctx context.Context, n int) (entries []Entry, err error) {
	if err := q.checkCount("peek", n); err != nil {
		return nil, err
	}
	for left, after := n, (store.Cursor{}); left > 0; {
		reply, err := q.executor.Run(ctx, q.store.Peek(after, min(left, maxGroup)))
		var page []Entry
		if err == nil {
			after, page, err = store.DecodePeeked(reply.Value, entryOf)
		}
		if err != nil {
			return entries, wrap("peek", q.name, err)
		}
		entries = append(entries, page...)
		if left -= len(page); after == (store.Cursor{}) {
			break
		}
	}
	return entries, nil
}

func (q *Queue) checkCount(op string, n int) error {
	if err := q.check(op); err != nil {
		return err
	}
	if n < 1 {
		return invalid(op, "n must be at least 1")
	}
	return nil
}
