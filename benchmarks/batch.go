package main

import (
	"context"
	"time"

	"github.com/sluice-go/sluice"
)

const batchesName = sluiceName + ", batches of 250"

// batcher is a queue that takes many tasks in a call.
type batcher interface {
	// EnqueueMany enqueues the tasks from to to-1.
	EnqueueMany(ctx context.Context, from, to int, due func(id int) time.Time) error
}

// batch measures batches that are one script each, beside one command with the same IDs.
func batch() scenario {
	return scenario{
		name:    "batch",
		about:   "one goroutine enqueues 200000 tasks without payload, 250 a call; the waits are of calls",
		measure: tasksPerSecond,
		entries: enterQueues(batchesName, floorName),
		columns: []column{serverTimeColumn, serverCPUColumn, allocsColumn},
		turn: func(ctx context.Context, t turn) (result, error) {
			return callsTurn(ctx, t, 1, 200_000, atOnce)
		},
	}
}

// batches is a queue whose callers enqueue many tasks in a call.
type batches struct{ taskQueue }

func openBatches(s setup) (queue, error) {
	q, err := newTaskQueue(s)
	return batches{q}, err
}

func (q batches) EnqueueMany(ctx context.Context, from, to int, due func(id int) time.Time) error {
	tasks := make([]sluice.Task, 0, to-from)
	for id := from; id < to; id++ {
		tasks = append(tasks, sluice.Task{ID: taskID(id), At: due(id)})
	}
	_, err := q.EnqueueBatch(ctx, tasks)
	return err
}
