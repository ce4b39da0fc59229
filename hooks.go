package sluice

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/locks"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/taskloop"
)

// LockHooks are functions that are called when something has happened to a lock: for metrics, logs
// and traces. Each is optional, and one that is nil costs nothing.
//
// The goroutine in which it happened calls them, and they hold up what comes next there: the caller
// of Lock, the renewals of other locks. So a hook must be short, and must not call the library.
// Several may run at the same time. A hook that panics is taken to have returned; what it panicked
// with is dropped. No hook may end its goroutine by runtime.Goexit, as t.FailNow does: what comes
// next there would not be done. No hook is given a token of a lock.
type LockHooks struct {
	// LockAcquired is called when Lock, TryLock, Do, LockAll, DoAll or Adopt has got a lock, before
	// that returns or calls its function. ctx is the call's.
	LockAcquired func(ctx context.Context, i LockAcquired)
	// LockWaitFailed is called when Lock, Do, LockAll or DoAll returns without the lock after
	// waiting for it. For LockAll and DoAll, its Name is the lock that they did not get; for each
	// lock that they had got, and give back, LockReleased is called. It is not called for TryLock,
	// nor where there was nothing to wait for: with bad arguments, or a Locker that was closed
	// before. ctx is the call's, and may have ended.
	LockWaitFailed func(ctx context.Context, i LockWaitFailed)
	// LockReleased is called when a lock was given up that had not been lost: by Unlock, UnlockAll,
	// Close, Detach or the end of Do. Of each lock for which LockAcquired was called (or would have
	// been) either it or LockLost is called, once, and after LockAcquired has returned. The next
	// holder's LockAcquired may come first.
	LockReleased func(i LockReleased)
	// LockLost is called when a lock is lost before it was released: at its deadline, or when the
	// server says that the holder's token does not hold the lock. It costs a timer for each lock,
	// and a goroutine that ends at once when the lock does.
	LockLost func(i LockLost)
}

// LockAcquired is what the hook LockAcquired is told.
type LockAcquired struct {
	Name       string        // as given to Lock
	Waited     time.Duration // from the call until the lock was acquired
	HandedOver bool          // by another caller of the Locker, without a command to the server
	Owner      string        // the label that WithOwner gave; empty without it
}

// LockWaitFailed is what the hook LockWaitFailed is told.
type LockWaitFailed struct {
	Name   string        // as given to Lock
	Waited time.Duration // from the call until its end
	Owner  string        // the label that WithOwner gave; empty without it
	// Err is why the wait ended: ErrLocked with the end of ctx, or of the wait of a LockAll that
	// has lost a lock; ErrUnavailable, ErrClosed, ...
	Err error
}

// LockReleased is what the hook LockReleased is told.
type LockReleased struct {
	Name       string        // as given to Lock
	Held       time.Duration // from the acquisition until now
	HandedOver bool          // to the next caller of the Locker, without a command to the server
}

// LockLost is what the hook LockLost is told.
type LockLost struct {
	Name string        // as given to Lock
	Held time.Duration // from the acquisition until the loss was noticed
}

// WithLockHooks calls the functions of h for locks. Given several times, the hooks of all are
// called, in that order: those of the Locker before those of a call. Defaults to none.
func WithLockHooks(h LockHooks) LockOption {
	isSet := h.LockAcquired != nil || h.LockWaitFailed != nil || h.LockReleased != nil || h.LockLost != nil
	return func(o *lockOptions) {
		if isSet {
			o.Hooks = append(slices.Clip(o.Hooks), h.tell)
		}
	}
}

// tell calls the hook for what has happened.
func (h *LockHooks) tell(ctx context.Context, e locks.Event) {
	switch e.What {
	case locks.Acquired, locks.TakenOver:
		callHook(h.LockAcquired != nil, func() {
			h.LockAcquired(ctx, LockAcquired{Name: e.Name, Waited: e.Waited, HandedOver: e.What == locks.TakenOver, Owner: e.Owner})
		})
	case locks.WaitFailed:
		callHook(h.LockWaitFailed != nil, func() {
			h.LockWaitFailed(ctx, LockWaitFailed{Name: e.Name, Waited: e.Waited, Owner: e.Owner, Err: e.Err})
		})
	case locks.Released, locks.HandedOver:
		callHook(h.LockReleased != nil, func() {
			h.LockReleased(LockReleased{Name: e.Name, Held: e.Held, HandedOver: e.What == locks.HandedOver})
		})
	case locks.Lost:
		callHook(h.LockLost != nil, func() { h.LockLost(LockLost{Name: e.Name, Held: e.Held}) })
	}
}

// QueueHooks are functions that are called when something has happened to the tasks of a queue: for
// metrics, logs and traces. Each is optional, and one that is nil costs nothing. What LockHooks
// says of a hook's calls holds for these too.
type QueueHooks struct {
	// TasksSending is called before Enqueue or EnqueueBatch sends tasks, with the call's ctx. The
	// context that it returns is the one that they are sent with, and that TasksSent gets; with
	// nil, that is ctx. It may set the Header of i.Tasks, which are a copy of the caller's; other
	// changes have no effect. A task whose new Header breaks a limit (see Task) is sent with the
	// one that its caller gave. Of tasks that are not valid, so that nothing is sent, no hook is
	// told.
	TasksSending func(ctx context.Context, i TasksSending) context.Context
	// TasksSent is called after that, when the outcome is known.
	TasksSent func(ctx context.Context, i TasksSent)
	// TasksClaimed is called when Claim, Pop, or a Worker's claim has brought tasks. A Worker gives
	// some of them back without calling its handler: when it stops, and those that came too late.
	TasksClaimed func(i TasksClaimed)
	// TaskStarted is called when a Worker is about to call its handler, which gets the context that
	// TaskStarted returns; with nil, that is ctx. It must be made from ctx: that is how a handler
	// learns that its lease is lost. It is also called, and TaskFinished then, for an occurrence of
	// a Periodic that the worker puts back, or has another one take the place of, and for a task
	// that has expired, without a call of the handler.
	TaskStarted func(ctx context.Context, i TaskStarted) context.Context
	// TaskFinished is called when a Worker's handler has returned and it is decided what becomes of
	// the task: Redis has accepted the result, or the lease is lost. ctx is the one that
	// TaskStarted returned, and has ended. It is called once for each call of the handler. What Run
	// leaves behind is Lost: that is told when Run gives up, or once the handler has returned,
	// after Run.
	TaskFinished func(ctx context.Context, i TaskFinished)
	// TaskStuck is called once when a Worker's handler is stuck: it has not returned for Grace
	// after its ctx has ended by Timeout, see Worker.Timeout. ctx is the one that TaskStarted
	// returned. TaskFinished is called when the handler returns, if ever.
	TaskStuck func(ctx context.Context, i TaskStuck)
}

// TasksSending is what the hook TasksSending is told.
type TasksSending struct {
	Queue string // the queue's name
	Tasks []Task // a copy; the hook may change their Header
}

// TasksSent is what the hook TasksSent is told. It must not change the tasks.
type TasksSent struct {
	Queue    string
	Tasks    []Task
	Outcomes []Outcome     // what the call returns
	Err      error         // what the call returns
	Took     time.Duration // from before the sending
}

// TasksClaimed is what the hook TasksClaimed is told. It must not change the entries.
type TasksClaimed struct {
	Queue   string
	Entries []Entry
}

// TaskStarted is what the hook TaskStarted is told.
type TaskStarted struct {
	Queue    string
	Entry    Entry
	Lateness time.Duration // from when the task was due until it was claimed, by the server's clock; not negative
}

// TaskFinished is what the hook TaskFinished is told.
type TaskFinished struct {
	Queue       string
	Entry       Entry
	Lateness    time.Duration // as TaskStarted was told
	Took        time.Duration // how long the handler ran
	Disposition Disposition
	Err         error // the handler's; of a task that has expired, that it has
}

// TaskStuck is what the hook TaskStuck is told.
type TaskStuck struct {
	Queue   string
	Entry   Entry
	Running time.Duration // since the handler was called
}

// Disposition is what becomes of a task when a Worker's handler has returned: DispositionDone,
// DispositionRetried and so on, one for each count of WorkerStats. What Enqueue did is an Outcome.
type Disposition int

const (
	// DispositionDone: the task is finished.
	DispositionDone Disposition = iota + 1
	// DispositionRetried: the attempt failed, and the task is to be handed out again.
	DispositionRetried
	// DispositionBuried: the task is put among the dead letters.
	DispositionBuried
	// DispositionCanceled: the task was cancelled while it was worked on.
	DispositionCanceled
	// DispositionReleased: the task is given back, and the attempt does not count.
	DispositionReleased
	// DispositionDiscarded: the handler has returned Discard, and the task is removed.
	DispositionDiscarded
	// DispositionAgain: the handler has returned Again, and the task is to be handed out again;
	// the attempt does not count.
	DispositionAgain
	// DispositionLost: the lease was lost; the task may be worked on again.
	DispositionLost
	// DispositionExpired: the task had expired before a handler had it, and is removed.
	DispositionExpired
)

var dispositionNames = [...]string{"unknown", "done", "retried", "buried", "canceled", "released", "discarded", "again", "lost", "expired"}

// String returns the disposition's name in lower case.
func (d Disposition) String() string { return nameIn(dispositionNames[:], int(d)) }

// WithQueueHooks calls the functions of h for tasks. Given several times, the hooks of all are
// called, in that order; each of TasksSending and TaskStarted is given the context that the one
// before it returned. Defaults to none.
func WithQueueHooks(h QueueHooks) QueueOption {
	isSet := h.TasksSending != nil || h.TasksSent != nil || h.tellsOfWork()
	return func(o *queueOptions) { o.hooks = o.hooks.with(&h, isSet) }
}

// tellsOfWork reports whether one of the hooks is for what a worker does.
func (h *QueueHooks) tellsOfWork() bool {
	return h.TasksClaimed != nil || h.TaskStarted != nil || h.TaskFinished != nil || h.TaskStuck != nil
}

// sendTasks has send enqueue tasks, and tells the hooks.
func (q *Queue) sendTasks(ctx context.Context, ts []Task, send func(ctx context.Context, ts []Task) ([]Outcome, error)) ([]Outcome, error) {
	if len(ts) == 0 {
		return send(ctx, ts)
	}
	if q.options.hooks.have(func(h *QueueHooks) bool { return h.TasksSending != nil }) {
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
	return q.options.hooks.have(func(h *QueueHooks) bool { return h.TasksSending != nil || h.TasksSent != nil })
}

// sending calls the hook TasksSending, and returns the context that it returns, and the tasks with
// the headers that it has set. A header that could not be sent is not used: a hook makes no Enqueue
// fail.
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
		if given[i].checkHeader() != nil || given[i].checkSize() != nil {
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

// workObserver tells the hooks of a queue what a worker does: a taskloop.Observer.
type workObserver struct {
	queue *Queue
	lease time.Duration
}

// newWorkObserver returns the observer of a worker that claims with this lease, or nil if no hook
// wants to know.
func (q *Queue) newWorkObserver(lease time.Duration) taskloop.Observer {
	if !q.options.hooks.have((*QueueHooks).tellsOfWork) {
		return nil
	}
	return &workObserver{queue: q, lease: lease}
}

// Claimed calls the hook TasksClaimed.
func (o *workObserver) Claimed(ts []store.Task) {
	es := make([]Entry, len(ts))
	for i, t := range ts {
		es[i] = withoutReceipt(t)
	}
	o.queue.noteClaimed(es)
}

// Started calls the hook TaskStarted.
func (o *workObserver) Started(ctx context.Context, t store.Task) context.Context {
	started := TaskStarted{Queue: o.queue.name, Entry: withoutReceipt(t), Lateness: o.lateness(t)}
	for _, h := range o.queue.options.hooks {
		callHook(h.TaskStarted != nil, func() {
			if made := h.TaskStarted(ctx, started); made != nil {
				ctx = made
			}
		})
	}
	return ctx
}

// Finished calls the hook TaskFinished.
func (o *workObserver) Finished(ctx context.Context, t store.Task, f taskloop.Finished) {
	finished := TaskFinished{
		Queue: o.queue.name, Entry: withoutReceipt(t), Lateness: o.lateness(t), Took: f.Took, Disposition: Disposition(f.Ending), Err: f.Err,
	}
	for _, h := range o.queue.options.hooks {
		callHook(h.TaskFinished != nil, func() { h.TaskFinished(ctx, finished) })
	}
}

// Stuck calls the hook TaskStuck.
func (o *workObserver) Stuck(ctx context.Context, t store.Task, running time.Duration) {
	stuck := TaskStuck{Queue: o.queue.name, Entry: withoutReceipt(t), Running: running}
	for _, h := range o.queue.options.hooks {
		callHook(h.TaskStuck != nil, func() { h.TaskStuck(ctx, stuck) })
	}
}

// lateness returns from when until when the task waited for its claim, which is a lease before the
// end of that. Both are times of the server's.
func (o *workObserver) lateness(t store.Task) time.Duration {
	if t.Due.Equal(time.Unix(0, 0)) { // a foreign producer's way to say "at once"
		return 0
	}
	return max(0, store.TimeOf(t.Score).Sub(t.Due)-o.lease)
}
