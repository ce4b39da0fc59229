package sluice

import (
	"context"

	"github.com/sluice-go/sluice/internal/watch"
)

// Wait sleeps until a task may be due, and returns nil then. It ends when the queue's earliest task is due, when it
// is notified of an earlier one, and when a poll has found one.
//
// Redis is polled when a caller begins to wait, unless a Claim has just said when the earliest task is due, and
// once in each poll interval. All callers on one client and queue share these polls, of which there are as many as
// the one wants that wants most, and all queues on one client share those that find nothing.
//
// It is a hint: another one may take the task first, so that Claim or Pop may find nothing, and
// the caller comes back. Of the callers on one Queue, as many return as there are tasks due, as
// far as is known, in the order in which they came. Of the clients that wait for one task the server tells one: it stands in
// line with the others, and Stats.Waiting counts them. A caller that returns and does not claim within 20ms
// has the next one told. If the client that was told has died, another one finds the task within a
// poll interval; within three if more than 100 clients wait, and most of them have died.
//
// If the earliest task is still the one that Wait has returned for before, because Claim fails for instance,
// Wait pauses before it returns for it again: for 1ms the first time, then twice as long each time, up to
// 100ms or the poll interval. For another task, it returns at once. So a loop around it never spins on a task
// that stays and that nothing takes. One that claims the task and releases it again does spin: Retry it.
//
// The error is ctx.Err() when ctx ends, or that of a poll that failed: the caller comes
// back after a pause.
func (q *Queue) Wait(ctx context.Context) error {
	if err := q.check("wait"); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return wrap("wait", q.name, err)
	}
	return wrap("wait", q.name, q.watcher.Wait(ctx, q.options.poll))
}

// clients finds what all Queues on one client share.
var clients = watch.NewRegistry(scripts)
