package sluice

import (
	"context"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/watch"
	"github.com/sluice-go/sluice/internal/wire"
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
var clients = watch.NewRegistry(lookScripts{})

// lookScripts are how watchers look at queues.
type lookScripts struct{}

// Look returns a request that looks at queues.
func (lookScripts) Look(queues []watch.Looking) redisexec.Request {
	if len(queues) == 1 {
		q := queues[0]
		if q.Leaves {
			q.Client = ">" + q.Client
		}
		return scripts.Next.Request(q.Keys, q.Client, store.Millis(q.Watch))
	}
	keys, args := make([]any, 0, 3*len(queues)), make([]any, 0, 2*len(queues))
	for _, q := range queues {
		keys, args = append(keys, q.Keys[0], q.Keys[pauseKey], q.Keys[lineKey]), append(args, q.Client, store.Millis(q.Watch))
	}
	return scripts.Heads.Request(keys, args...)
}

// Heads decodes the heads of n queues.
func (lookScripts) Heads(reply any, n int) ([]watch.Head, error) {
	r, heads := wire.Read(reply), make([]watch.Head, n)
	for i := range heads {
		us := r.Int()
		heads[i] = watch.Head{
			Off: farOff, ID: r.Text(), Waiting: int(r.Int()), Place: watch.Place(r.Int()), Failed: us == headFailed,
		}
		if us >= 0 && us < farOff.Microseconds() {
			heads[i].Off = time.Duration(us) * time.Microsecond
		}
	}
	return heads, r.Err()
}

// headAfterClaim is what the reply to a claim says of the head: in what time it is due, negative for how long it has been, and
// of the line.
func headAfterClaim(next time.Duration, waiting, place int) watch.Head {
	return watch.Head{Off: max(next, 0), Waiting: waiting, Place: watch.Place(place)}
}

// headFailed is what heads.lua says instead of when the head is due, of a queue that it could not look at.
const headFailed = -2

// farOff is what the scripts say of a head that is due later, or of none.
const farOff = watch.FarOff
