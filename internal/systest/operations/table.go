package operations

import (
	"context"
	"time"

	"github.com/sluice-go/sluice"
)

// Why proof/model or proof/chaos does not call several of the methods.
const (
	aboutTheServer = "it asks how the server is configured"
	readsOnly      = "it changes nothing"
	encodes        = "it encodes a payload, and calls the Queue's method"
)

// Table has every operation. What ends the use of a Locker comes last, for tests in which
// operations share one.
var Table = []Operation{
	{Name: "Locker.Lock", Lost: Replaced, Adds: true, Replicated: true, Hooks: "LockAcquired",
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Locker.Lock(ctx, f.Name) }},
	{Name: "Locker.TryLock", Lost: Replaced, Adds: true, Replicated: true, Hooks: "LockAcquired",
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Locker.TryLock(ctx, f.Name) }},
	{Name: "Locker.Do", Lost: Replaced, Adds: true, Replicated: true, Hooks: "LockAcquired LockReleased", NoModel: "it is Lock and Unlock",
		Call: func(ctx context.Context, f *Fixture) (any, error) { return nil, f.Locker.Do(ctx, f.Name, section) }},
	{Name: "Locker.LockAll", Lost: Replaced, Adds: true, Replicated: true, Hooks: "LockAcquired LockAcquired",
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Locker.LockAll(ctx, f.names()) }},
	{Name: "Locker.DoAll", Lost: Replaced, Adds: true, Replicated: true, Hooks: "LockAcquired LockAcquired LockReleased LockReleased",
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			return nil, f.Locker.DoAll(ctx, f.names(), section)
		}},
	{Name: "Locker.Adopt", Needs: Held, Replicated: true, Hooks: "LockAcquired",
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			return f.Locker.Adopt(ctx, f.Name, f.token(), sluice.WithTTL(time.Hour))
		}},
	{Name: "Locker.Inspect", Needs: Held,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Locker.Inspect(ctx, f.Name) }},
	{Name: "Locker.ForceUnlock", Needs: Held, Lost: Unknown, Hooks: "LockLost",
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Locker.ForceUnlock(ctx, f.Name) }},
	{Name: "Locker.ForceUnlockFrom", Needs: Held, Lost: Unknown, Hooks: "LockLost", NoModel: "it is ForceUnlock, or nothing", NoChaos: "it is ForceUnlock, or nothing",
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			return f.Locker.ForceUnlockFrom(ctx, f.Name, "holder")
		}},
	{Name: "Locker.Check", Lost: Unavailable, NoModel: aboutTheServer, NoChaos: readsOnly,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return nil, f.Locker.Check(ctx) }},
	{Name: "Lock.Extend", Needs: Held, Replicated: true,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return nil, f.Lock.Extend(ctx, time.Hour) }},
	{Name: "Lock.TTL", Needs: Held, NoChaos: readsOnly,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Lock.TTL(ctx) }},
	{Name: "Lock.Detach", Needs: Held, Lost: Local, Outlives: true, Hooks: "LockReleased",
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Lock.Detach(ctx) }},
	{Name: "Lock.Unlock", Needs: Held, Outlives: true, Hooks: "LockReleased",
		Call: func(ctx context.Context, f *Fixture) (any, error) { return nil, f.Lock.Unlock(ctx) }},
	{Name: "LockSet.Unlock", Needs: HeldSet, Outlives: true, Hooks: "LockReleased LockReleased",
		Call: func(ctx context.Context, f *Fixture) (any, error) { return nil, f.Set.Unlock(ctx) }},

	{Name: "Queue.Enqueue", Lost: Unknown, Adds: true, Replicated: true, Hooks: "TasksSending TasksSent",
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Queue.Enqueue(ctx, f.task()) }},
	{Name: "Queue.EnqueueBatch", Lost: Unknown, Adds: true, Replicated: true, Hooks: "TasksSending TasksSent",
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			return f.Queue.EnqueueBatch(ctx, []sluice.Task{f.task(), {ID: f.Entry.ID + "2"}})
		}},
	{Name: "Queues.EnqueueBatch", Lost: Unknown, Adds: true, Replicated: true, Hooks: "TasksSending TasksSent", NoModel: "it is Queue.EnqueueBatch, of each queue",
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			return sluice.Queues{f.Queue}.EnqueueBatch(ctx, []sluice.Task{f.task(), {ID: f.Entry.ID + "2"}})
		}},
	{Name: "Typed.Enqueue", Lost: Unknown, Adds: true, Replicated: true, Hooks: "TasksSending TasksSent", NoModel: encodes, NoChaos: encodes,
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			t := f.task()
			t.Payload = nil
			return f.typed().Enqueue(ctx, t, "")
		}},
	{Name: "Typed.EnqueueBatch", Lost: Unknown, Adds: true, Replicated: true, Hooks: "TasksSending TasksSent", NoModel: encodes, NoChaos: encodes,
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			t := f.task()
			t.Payload = nil
			return f.typed().EnqueueBatch(ctx, []sluice.Task{t, {ID: f.Entry.ID + "2"}}, []string{"", ""})
		}},
	{Name: "Queue.Claim", Needs: Due, Lost: Unknown, Hooks: "TasksClaimed",
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Queue.Claim(ctx, 1, time.Hour) }},
	{Name: "Queue.Pop", Needs: Due, Lost: Unknown, Replicated: true, Hooks: "TasksClaimed",
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Queue.Pop(ctx, 1) }},
	{Name: "Queue.Peek", Needs: Due,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Queue.Peek(ctx, 1) }},
	{Name: "Queue.Wait", Needs: Due, Lost: GoesOn, NoModel: "it returns a hint, at no fixed time",
		Call: func(ctx context.Context, f *Fixture) (any, error) { return nil, f.Queue.Wait(ctx) }},
	{Name: "Queue.Dequeue", Needs: Leased, Lost: UsedUp, Replicated: true,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return nil, f.Queue.Dequeue(ctx, f.Entry) }},
	{Name: "Queue.Retry", Needs: Leased, Lost: UsedUp, Replicated: true,
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			return nil, f.Queue.Retry(ctx, time.Hour, "failed", f.Entry)
		}},
	{Name: "Queue.Release", Needs: Leased, Lost: UsedUp, Replicated: true,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return nil, f.Queue.Release(ctx, f.Entry) }},
	{Name: "Queue.Bury", Needs: Leased, Lost: UsedUp, Replicated: true,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return nil, f.Queue.Bury(ctx, "why", f.Entry) }},
	{Name: "Queue.Extend", Needs: Leased,
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			return nil, f.Queue.Extend(ctx, f.Entry, time.Hour)
		}},
	{Name: "Queue.KeepAlive", Needs: Leased, NoModel: "it is Extend, at times of its own", NoChaos: "a gap: no client keeps a task without a Worker",
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			return nil, f.Queue.KeepAlive(ctx, f.Entry, time.Hour, section)
		}},
	{Name: "Queue.Get", Needs: Due,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Queue.Get(ctx, f.Entry.ID) }},
	{Name: "Queue.Await", Needs: Dead, Lost: GoesOn, NoModel: "it is Get, at times of its own", NoChaos: readsOnly,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Remembering.Await(ctx, f.Entry.ID) }},
	{Name: "Queue.List", Needs: Leased,
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			return f.Queue.List(ctx, sluice.StateLeased, sluice.TaskInfo{}, 1)
		}},
	{Name: "Queue.Stats", Needs: Due,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Queue.Stats(ctx) }},
	{Name: "Queue.Workers", Needs: Due, NoModel: "it tells of Workers that run", NoChaos: readsOnly,
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			workers, err := f.Queue.Workers(ctx)
			return &workers, err // none is an answer, too
		}},
	{Name: "Queue.Check", Lost: Unavailable, NoModel: aboutTheServer, NoChaos: readsOnly,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return nil, f.Queue.Check(ctx) }},
	{Name: "Queue.Cancel", Needs: Due, Lost: Unknown, Replicated: true,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Queue.Cancel(ctx, f.Entry.ID) }},
	{Name: "Queue.Restore", Lost: Unknown, Adds: true, Replicated: true, NoModel: "a test compares what is restored with what was there", NoChaos: "it is for the operator",
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			return f.Queue.Restore(ctx, sluice.TaskInfo{Entry: sluice.Entry{ID: f.Entry.ID, Due: time.Now()}, State: sluice.StateDue})
		}},
	{Name: "Queue.CancelBatch", Needs: Due, Lost: Unknown, Replicated: true,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Queue.CancelBatch(ctx, f.Entry.ID) }},
	{Name: "Queue.CancelUnchanged", Needs: Due, Lost: Unknown, Replicated: true,
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			return f.Queue.CancelUnchanged(ctx, sluice.TaskInfo{Entry: f.Entry, State: sluice.StateDue})
		}},
	{Name: "Queue.Reschedule", Needs: Due, Lost: Unknown, Replicated: true,
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			return f.Queue.Reschedule(ctx, f.Entry.ID, time.Hour)
		}},
	{Name: "Queue.All", Needs: Dead,
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			for t, err := range f.Queue.All(ctx, sluice.StateDead) {
				return t, err
			}
			return nil, nil
		}},
	{Name: "Queue.SetStock", Lost: Unknown, Adds: true, Replicated: true,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return nil, f.Queue.SetStock(ctx, "item", 1) }},
	{Name: "Queue.Stock", Needs: Stocked,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Queue.Stock(ctx, "item") }},
	{Name: "Queue.Stocks", Needs: Stocked,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Queue.Stocks(ctx) }},
	{Name: "Queue.DeleteStock", Needs: Stocked, Lost: Unknown, Replicated: true,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return nil, f.Queue.DeleteStock(ctx, "item") }},
	{Name: "Queue.Revive", Needs: Dead, Lost: Unknown, Replicated: true,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Queue.Revive(ctx, f.Entry.ID) }},
	{Name: "Queue.Drop", Needs: Dead, Lost: Unknown, Replicated: true,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return f.Queue.Drop(ctx, f.Entry.ID) }},
	{Name: "Queue.Pause", Lost: Unknown, Replicated: true,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return nil, f.Queue.Pause(ctx, time.Hour) }},
	{Name: "Queue.Resume", Needs: Paused, Lost: Unknown, Replicated: true,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return nil, f.Queue.Resume(ctx) }},
	{Name: "Queue.SetLimits", Lost: Unknown, Replicated: true,
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			return nil, f.Queue.SetLimits(ctx, sluice.Limits{Running: 100, Rate: 1000})
		}},
	{Name: "Queue.Limits", Needs: Due, NoChaos: readsOnly,
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			limits, err := f.Queue.Limits(ctx)
			return &limits, err // none is an answer, too
		}},
	{Name: "Queue.Purge", Needs: Due, Lost: Unknown, Replicated: true, NoChaos: "it would take the tasks of all clients",
		Call: func(ctx context.Context, f *Fixture) (any, error) { return nil, f.Queue.Purge(ctx) }},

	{Name: "Worker.Run", Needs: Due, Lost: GoesOn, Hooks: "TasksClaimed TaskStarted TaskFinished", NoModel: "what it sends depends on timing: chaos has it",
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			return nil, f.worker(cancel).Run(ctx)
		}},
	{Name: "Worker.Check", Lost: Unavailable, NoModel: aboutTheServer, NoChaos: readsOnly,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return nil, f.worker(nil).Check(ctx) }},

	{Name: "Pool.Run", Needs: Due, Lost: GoesOn, Hooks: "TasksClaimed TaskStarted TaskFinished", NoModel: "what it sends depends on timing",
		Call: func(ctx context.Context, f *Fixture) (any, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			return nil, f.pool(cancel).Run(ctx)
		}},
	{Name: "Pool.Check", Lost: Unavailable, NoModel: aboutTheServer, NoChaos: readsOnly,
		Call: func(ctx context.Context, f *Fixture) (any, error) { return nil, f.pool(nil).Check(ctx) }},

	{Name: "Locker.UnlockAll", Needs: Held, Outlives: true, Hooks: "LockReleased",
		Call: func(ctx context.Context, f *Fixture) (any, error) { return nil, f.Locker.UnlockAll(ctx) }},
	{Name: "Locker.Close", Needs: Held, Outlives: true, Hooks: "LockReleased",
		Call: func(_ context.Context, f *Fixture) (any, error) { return nil, f.Locker.Close() }},
}

func (f *Fixture) typed() sluice.Typed[string] {
	return sluice.Typed[string]{Queue: f.Queue, Kind: "k"}
}
