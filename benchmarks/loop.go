package main

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

const loopName = sluiceName + ", own loop"

// loop measures a loop of one's own on a Queue, beside a Worker.
func loop() scenario {
	return scenario{
		name:    "loop",
		about:   "20000 tasks due; 64 goroutines that each claim one task, do nothing and dequeue it, beside workers of 64 handlers",
		measure: tasksPerSecond,
		entries: enterQueues(sluiceName, loopName, asynqName),
		columns: []column{scriptsColumn, serverCPUColumn, allocsColumn},
		turn:    func(ctx context.Context, t turn) (result, error) { return workTurn(ctx, t, 64, 20_000) },
	}
}

// ownLoop is a queue that is worked on without a Worker.
type ownLoop struct{ taskQueue }

func openLoop(s setup) (queue, error) {
	q, err := newTaskQueue(s)
	return ownLoop{q}, err
}

func (q ownLoop) Work(ctx context.Context, concurrency int, handler func(id int)) error {
	var group errgroup.Group
	for range concurrency {
		group.Go(func() error {
			for ctx.Err() == nil {
				if err := q.serve(ctx, handler); err != nil && ctx.Err() == nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// serve takes one task through, or waits until one is due.
func (q ownLoop) serve(ctx context.Context, handler func(id int)) error {
	entries, err := q.Claim(ctx, 1, 30*time.Second)
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		return q.Wait(ctx)
	}
	handler(idOf(entries[0].ID))
	return q.Dequeue(context.WithoutCancel(ctx), entries...)
}
