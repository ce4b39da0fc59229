package sluice

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-go/sluice/internal/groupcommit"
	"github.com/sluice-go/sluice/internal/redisexec"
)

// callsAlone is how many calls of a kind a queue has under way, each with a script of its own,
// before what comes waits and is merged.
const callsAlone = 2

// mergePatience is how long calls wait at least for what is under way.
const mergePatience = 50 * time.Millisecond

// mergedResult is what a call gets: its part of the group's reply, in the form that the script
// gives to a call that is sent alone, or what became of the group.
type mergedResult struct {
	redisexec.Result
	sent time.Time // just before the group or the call was sent
}

// committer sends calls with arguments of type A, each alone or merged with others.
type committer[A any] = groupcommit.Committer[A, mergedResult]

// mergedCall is a call in a group.
type mergedCall[A any] = groupcommit.Call[A, mergedResult]

// newCommitter returns a committer of a queue's, which sends groups by commit.
func newCommitter[A any](q *Queue, commit func(calls []*mergedCall[A])) *committer[A] {
	return groupcommit.New(groupcommit.Config[A, mergedResult]{
		Alone: callsAlone, Items: maxGroup, Bytes: maxGroupBytes, Patience: mergePatience, Grace: redisexec.ReplyGrace,
		Start:  q.executor.StartFunc,
		Commit: commit,
		Lost:   mergedResult{Result: redisexec.Result{Outcome: redisexec.Unknown, Err: redisexec.ErrPanicked}},
	})
}

// runMerged carries a request out like Executor.Run, except that its first attempt may be
// made as a part of a group. Whatever comes of that attempt, the caller goes on alone: what may
// be tried again it tries again by itself, with its own context, as long as it would have been
// tried otherwise. So a group has no retries, and no caller waits for another's.
func runMerged[A any](ctx context.Context, q *Queue, c *committer[A], arg A, items, bytes int,
	request func(arg A) redisexec.Request,
) (redisexec.Reply, error) {
	var m mergedResult
	if call := c.Enter(ctx, arg, items, bytes); call != nil {
		m = waitFor(call)
	} else {
		m = sendAlone(ctx, q, c, request(arg))
	}
	if m.Outcome == redisexec.Done {
		return redisexec.Reply{Value: m.Value, Sent: m.sent, Shortfall: m.Shortfall}, nil
	}
	return q.executor.Resume(ctx, request(arg), m.Result)
}

// sendAlone sends a request once, while it has a place among those that are under way.
func sendAlone[A any](ctx context.Context, q *Queue, c *committer[A], r redisexec.Request) mergedResult {
	defer c.Exit()
	sent := time.Now()
	return mergedResult{q.executor.Once(ctx, r), sent}
}

// waitFor returns what became of a call that is sent in a group.
func waitFor[A any](call *mergedCall[A]) mergedResult {
	m, err := call.Wait()
	switch {
	case err == nil:
	case errors.Is(err, groupcommit.ErrWithdrawn):
		m.Result = redisexec.Result{Outcome: redisexec.NotSent, Err: call.Ctx.Err()}
	default:
		m.Result = redisexec.Result{Outcome: redisexec.Abandoned, Err: call.Ctx.Err()}
	}
	return m
}

// leastGroupWait is how long the replicas of a group are waited for at the least, however soon the context of one of its
// callers ends: the others' tasks would count as under-replicated where a replica takes a moment.
const leastGroupWait = 250 * time.Millisecond

// commitGroup sends a group once, as one request. The context is no caller's: it ends with none of
// them. It has the values of the first one's, for the client's hooks.
//
// deal gives each call its part of the result, which has a reply. What became of a group without a reply is what
// became of each call.
func commitGroup[A any](q *Queue, calls []*mergedCall[A], r redisexec.Request, deal func(result redisexec.Result, sent time.Time)) {
	for _, call := range calls {
		if at, ok := call.Ctx.Deadline(); ok {
			r = r.AnsweredBy(at, leastGroupWait)
		}
	}
	sent := time.Now()
	result := q.executor.Once(context.WithoutCancel(calls[0].Ctx), r)
	if result.Outcome == redisexec.Done {
		deal(result, sent)
		return
	}
	for _, call := range calls {
		call.Settle(mergedResult{result, sent})
	}
}
