package sluice

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/taskloop"
	"github.com/sluice-go/sluice/internal/wire"
)

// sendTasks has send enqueue tasks, and tells the hooks.
func (q *Queue) sendTasks(ctx context.Context, ts []Task, send func(ctx context.Context, ts []Task) ([]Outcome, error)) ([]Outcome, error) {
	if len(ts) == 0 {
		return send(ctx, ts)
	}
	if q.options.hooks.have(func(h *Hooks) bool { return h.TasksSending != nil }) {
		ctx, ts = q.sending(ctx, ts)
	}
	began := time.Now()
	outcomes, err := send(ctx, ts)
	sent := TasksSent{Queue: q.name, Tasks: ts, Outcomes: outcomes, Err: err, Took: time.Since(began)}
	for _, h := range q.options.hooks {
		callHook(h.TasksSent != nil, func() { h.TasksSent(ctx, sent) })
	}
	return outcomes, err
}

// hooksSend reports whether there is a hook for tasks that are enqueued.
func (q *Queue) hooksSend() bool {
	return q.options.hooks.have(func(h *Hooks) bool { return h.TasksSending != nil || h.TasksSent != nil })
}

// sending calls the hook TasksSending, and returns the context that it returns, and the tasks with the headers that
// it has set. A header that could not be sent is not used: a hook makes no Enqueue fail.
func (q *Queue) sending(ctx context.Context, ts []Task) (context.Context, []Task) {
	given := slices.Clone(ts)
	for i := range given {
		given[i].Header = maps.Clone(given[i].Header) // the caller's may be that of other tasks too
	}
	for _, h := range q.options.hooks {
		callHook(h.TasksSending != nil, func() {
			if made := h.TasksSending(ctx, TasksSending{Queue: q.name, Tasks: given}); made != nil {
				ctx = made
			}
		})
	}
	for i := range given {
		header := given[i].Header
		given[i] = ts[i]
		given[i].Header = header
		if checkHeader(header) != nil || given[i].checkSize(q.options.maxPayload) != nil {
			given[i].Header = ts[i].Header
		}
	}
	return ctx, given
}

// noteClaimed tells the hook of tasks that were claimed or popped.
func (q *Queue) noteClaimed(es []Entry) {
	if len(es) == 0 {
		return
	}
	for _, h := range q.options.hooks {
		callHook(h.TasksClaimed != nil, func() { h.TasksClaimed(TasksClaimed{Queue: q.name, Entries: es}) })
	}
}

// noteClaimedTasks is noteClaimed for a worker.
func (q *Queue) noteClaimedTasks(ts []wire.Task) {
	if !q.options.hooks.have(func(h *Hooks) bool { return h.TasksClaimed != nil }) {
		return
	}
	es := make([]Entry, len(ts))
	for i, t := range ts {
		es[i] = entryOf(t)
	}
	q.noteClaimed(es)
}

// workObserver tells the hooks of a queue what a worker does: a taskloop.Observer.
type workObserver struct {
	hooks hookList
	queue string
	lease time.Duration
}

// newWorkObserver returns the observer of a worker that claims with this lease, or nil if no hook
// wants to know.
func (q *Queue) newWorkObserver(lease time.Duration) taskloop.Observer {
	if !q.options.hooks.have(func(h *Hooks) bool { return h.TaskStarted != nil || h.TaskFinished != nil }) {
		return nil
	}
	return &workObserver{hooks: q.options.hooks, queue: q.name, lease: lease}
}

// Started calls the hook TaskStarted.
func (o *workObserver) Started(ctx context.Context, t wire.Task) context.Context {
	started := TaskStarted{Queue: o.queue, Entry: entryOf(t), Lateness: o.lateness(t)}
	for _, h := range o.hooks {
		callHook(h.TaskStarted != nil, func() {
			if made := h.TaskStarted(ctx, started); made != nil {
				ctx = made
			}
		})
	}
	return ctx
}

// Finished calls the hook TaskFinished.
func (o *workObserver) Finished(ctx context.Context, t wire.Task, f taskloop.Finished) {
	finished := TaskFinished{
		Queue: o.queue, Entry: entryOf(t), Lateness: o.lateness(t), Took: f.Took, Disposition: Disposition(f.Ending), Err: f.Err,
	}
	for _, h := range o.hooks {
		callHook(h.TaskFinished != nil, func() { h.TaskFinished(ctx, finished) })
	}
}

// lateness returns from when until when the task waited for its claim, which is a lease before the end of
// that. Both are times of the server's.
func (o *workObserver) lateness(t wire.Task) time.Duration {
	if t.Due == 0 { // a foreign producer's way to say "at once"
		return 0
	}
	return max(0, time.Duration((t.Score-t.Due)*1e6)*time.Microsecond-o.lease)
}
