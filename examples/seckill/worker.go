package main

import (
	"context"
	"time"

	"github.com/sluice-go/sluice"
)

const (
	// lease is how long a claimed task is the worker's. A worker that dies keeps
	// its tasks from the others for no longer than its lock; one that has waited
	// that long for the lock gives up and claims again.
	lease = lockTTL
	// batch is how many orders are cancelled in one stay under the lock.
	batch = 50
	// breather is the pause after Redis has failed.
	breather = 100 * time.Millisecond
)

// work cancels orders that are due and not paid, until ctx ends. Every process
// has such a loop; a task is handed to one of them.
func (s *seller) work(ctx context.Context) error {
	for ctx.Err() == nil {
		err := s.queue.Wait(ctx)
		var tasks []sluice.Entry
		if err == nil {
			// After ErrUnknown tasks may be leased to nobody. They are due again
			// when the lease ends.
			tasks, err = s.queue.Claim(ctx, batch, lease)
		}
		if err == nil && len(tasks) > 0 {
			err = s.cancel(ctx, tasks)
		}
		if err != nil {
			_ = pause(ctx, breather)
		}
	}
	return nil
}

// cancel does what tasks are about, and finishes them when it is committed: a
// task goes away after its work and not before, so that a process that dies in
// between leaves it to another, which finds nothing left to do. After an error
// nothing is said of the tasks, and they are due again when the lease ends.
//
// It takes the lock since it changes the stock: a buyer inside has seen how much
// there is. And with the lock it knows that who was inside when a task was
// enqueued has come out: an order that does not exist now never will.
func (s *seller) cancel(ctx context.Context, tasks []sluice.Entry) error {
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
	// ErrStale: somebody paid at the last moment and removed the task, or the
	// lease ran out and another worker has it, who will find its order
	// cancelled. ErrUnknown: likewise, at worst. Neither changes anything.
	_ = s.queue.Dequeue(ctx, tasks...)
	return nil
}
