package sluice

import (
	"context"
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// Hooks are functions that are called when something has happened: for metrics, logs and
// traces. Each is optional, and one that is nil costs nothing.
//
// The goroutine in which it happened waits for them, and they hold up what comes next there: the caller of
// Lock or Enqueue, the renewals of other locks, the tasks of a worker. So a hook must be short, and must not
// call the library. Each call has a goroutine of its own; several may run at the same time. A hook that panics,
// or ends its goroutine by runtime.Goexit, is taken to have returned; what it panicked with is dropped. No hook
// is given a token of a lock.
type Hooks struct {
	// LockAcquired is called when Lock, TryLock, Do, LockAll, DoAll or Adopt has got a lock, before that returns
	// or calls its function. ctx is the call's.
	LockAcquired func(ctx context.Context, i LockAcquired)
	// LockReleased is called when a lock was given up that had not been lost: by Unlock, UnlockAll, Close, Detach
	// or the end of Do. Of each lock for which LockAcquired was called (or would have been) either it or LockLost
	// is called, once, and after LockAcquired has returned. The next holder's LockAcquired may come first.
	LockReleased func(i LockReleased)
	// LockLost is called when a lock is lost before it was released: at its deadline, or when the server says that
	// the holder's token does not hold the lock. It costs a timer for each lock.
	LockLost func(i LockLost)

	// TasksSending is called before Enqueue or EnqueueBatch sends tasks, with the call's ctx. The context that it
	// returns is the one that they are sent with, and that TasksSent gets; with nil, that is ctx. It may set the
	// Header of i.Tasks, which are a copy of the caller's; other changes have no effect. A task whose new Header
	// breaks a limit (see Task.Header and WithMaxPayload) is sent with the one that its caller gave. Of tasks that
	// are not valid, so that nothing is sent, no hook is told.
	TasksSending func(ctx context.Context, i TasksSending) context.Context
	// TasksSent is called after that, when the outcome is known.
	TasksSent func(ctx context.Context, i TasksSent)
	// TasksClaimed is called when Claim, Pop, or a Worker's claim has brought tasks. A Worker gives some of them back
	// without calling its handler: when it stops, and those that came too late.
	TasksClaimed func(i TasksClaimed)
	// TaskStarted is called when a Worker is about to call its handler, which gets the context that TaskStarted
	// returns; with nil, that is ctx. It must be made from ctx: that is how a handler learns that its lease is lost.
	// It is also called, and TaskFinished then, for an occurrence of a Periodic that the worker puts back without
	// calling its handler, since its list does not have it.
	TaskStarted func(ctx context.Context, i TaskStarted) context.Context
	// TaskFinished is called when a Worker's handler has returned and it is decided what becomes of the task:
	// Redis has accepted the result, or the lease is lost. ctx is the one that TaskStarted returned, and has
	// ended. It is called once for each call of the handler. What Run leaves behind is Lost: that is told
	// when Run gives up, or once the handler has returned, after Run.
	TaskFinished func(ctx context.Context, i TaskFinished)
}

// LockAcquired is what the hook LockAcquired is told.
type LockAcquired struct {
	Name       string        // as given to Lock
	Waited     time.Duration // from the call until the lock was acquired
	HandedOver bool          // by another caller of the Locker, without a command to the server
	Owner      string        // the label that WithOwner gave; empty without it
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
	Err         error // the handler's
}

// Disposition is what becomes of a task when a Worker's handler has returned. There is one for each count
// of WorkerStats.
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
	// DispositionSnoozed: the handler has returned Again, and the task is to be handed out again; the attempt does not count.
	DispositionSnoozed
	// DispositionLost: the lease was lost; the task may be worked on again.
	DispositionLost
)

var dispositionNames = [...]string{"", "done", "retried", "buried", "canceled", "released", "snoozed", "lost"}

// String returns the disposition's name in lower case.
func (d Disposition) String() string {
	if d < DispositionDone || d > DispositionLost {
		return "unknown"
	}
	return dispositionNames[d]
}

// WithLockHooks has h called for locks. Given several times, the hooks of all are called, in that order:
// those of the Locker before those of a call. Defaults to none.
func WithLockHooks(h Hooks) LockOption {
	return func(o *lockOptions) {
		if h.LockAcquired != nil || h.LockReleased != nil || h.LockLost != nil {
			o.hooks = append(slices.Clip(o.hooks), &h)
		}
	}
}

// WithQueueHooks has h called for tasks. Given several times, the hooks of all are called, in that order; each of
// TasksSending and TaskStarted is given the context that the one before it returned. Defaults to none.
func WithQueueHooks(h Hooks) QueueOption {
	return func(o *queueOptions) {
		if h.TasksSending != nil || h.TasksSent != nil || h.TasksClaimed != nil || h.TaskStarted != nil || h.TaskFinished != nil {
			o.hooks = append(slices.Clip(o.hooks), &h)
		}
	}
}

// hookList is all Hooks that were given, in the order in which they are called; nil for none.
type hookList []*Hooks

// have reports whether one of them has a hook for which isSet is true.
func (all hookList) have(isSet func(h *Hooks) bool) bool { return slices.ContainsFunc(all, isSet) }

// callHook calls a hook, if it is set, and waits for its end. Its goroutine is its own. The hook may end that, as t.FailNow
// does: in the caller's goroutine that could not be stopped, and the lock that was just acquired would have no owner, or the
// renewals of others would end.
func callHook(isSet bool, hook func()) {
	if !isSet {
		return
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		var dropped error
		defer redisexec.Contain(&dropped)
		hook()
	}()
	<-over
}
