package main

import (
	"context"
	"time"

	"github.com/sluice-go/sluice"
)

const (
	// lease is how long a worker holds a claimed task. It equals the lock's TTL: the tasks of a
	// worker that dies are due again when its lock is free. A worker that has waited that
	// long for the lock gives up and claims again.
	lease = lockTTL
	// batch is how many orders are cancelled under one hold of the lock.
	batch = 50
	// errorPause is the pause after an error of Redis.
	errorPause = 100 * time.Millisecond
)

// work cancels orders that are due and unpaid, until ctx ends. Every process runs this loop;
// one of them claims each task.
func (s *byLock) work(ctx context.Context) error {
	for ctx.Err() == nil {
		err := s.queue.Wait(ctx)
		var tasks []sluice.Entry
		if err == nil {
			// After ErrUnknown, tasks may be leased although no worker got them.
			// They are due again when the lease ends.
			tasks, err = s.queue.Claim(ctx, batch, lease)
		}
		if err == nil && len(tasks) > 0 {
			err = s.cancel(ctx, tasks)
		}
		if err != nil {
			_ = pause(ctx, errorPause)
		}
	}
	return nil
}

// cancel cancels the orders of tasks, and finishes the tasks once that is committed. If a
// process dies in between, another one claims the tasks and finds nothing left to do. After an
// error the tasks stay claimed, and are due again when the lease ends.
//
// It takes the lock because it changes the stock, which a buyer under the lock has read. Under
// the lock it also knows that the buyer who enqueued a task has left the critical section: an
// order that does not exist now will never exist.
func (s *byLock) cancel(ctx context.Context, tasks []sluice.Entry) error {
	ctx, stop := context.WithTimeout(ctx, lease)
	defer stop()
	ids := make([]string, len(tasks))
	for i, t := range tasks {
		ids[i] = t.ID
	}
	err := s.locker.Do(ctx, s.Run, func(ctx context.Context) error {
		return s.shop.cancel(ctx, ids...)
	})
	if err != nil {
		return err
	}
	// ErrStale: the customer paid at the last moment, which removed the task; or the lease
	// ended, and another worker has claimed the task and will find its order cancelled.
	// ErrUnknown may mean the same. Both are harmless.
	_ = s.queue.Dequeue(ctx, tasks...)
	return nil
}
