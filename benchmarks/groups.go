package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-go/sluice"
)

// groupQueue is the queue of Sluice, whose tasks are in groups of some size.
type groupQueue struct {
	taskQueue
	size int
}

func enterGroups(size int) entrant {
	name, settings := sluiceName, "no groups"
	if size > 0 {
		name, settings = fmt.Sprintf("%s, groups of %d", sluiceName, size), "Limits.PerGroup: 1"
	}
	return entrant{name: name, settings: settings, openQueue: func(s setup) (queue, error) {
		q, err := newTaskQueue(s)
		return groupQueue{q, size}, err
	}}
}

func (q groupQueue) Fill(ctx context.Context, n int, payload []byte, due func(int) time.Time) error {
	const batch = 5000
	tasks := make([]sluice.Task, 0, batch)
	for id := range n {
		t := sluice.Task{ID: taskID(id), Payload: payload, At: due(id)}
		if q.size > 0 {
			t.Group = fmt.Sprint("g", id/q.size)
		}
		if tasks = append(tasks, t); len(tasks) == batch || id == n-1 {
			if _, err := q.EnqueueBatch(ctx, tasks); err != nil {
				return err
			}
			tasks = tasks[:0]
		}
	}
	return nil
}

const enqueueCPU = "enqueue, CPU"

// groups measures what tasks of groups cost: from their enqueue to their end.
func groups() scenario {
	return scenario{
		name:    "groups",
		about:   "200000 tasks, in batches of 5000, then 64 handlers at once that do nothing: the server's CPU for an enqueue, and from the claim to the end; its memory",
		measure: tasksPerSecond,
		entries: []entrant{enterGroups(0), enterGroups(1), enterGroups(100), enterGroups(50_000)},
		columns: []column{{enqueueCPU, median, inTime}, serverCPUColumn, {"bytes", median, whole}, commandsColumn},
		turn:    groupsTurn,
	}
}

func groupsTurn(ctx context.Context, t turn) (result, error) {
	tasks := t.tasks(200_000)
	memory := usedMemory(t.setup.Addr)
	before, err := memory(ctx)
	if err != nil {
		return result{}, err
	}
	if err := t.meter.start(ctx); err != nil {
		return result{}, err
	}
	if err := t.queue.Fill(ctx, tasks, nil, atOnce); err != nil {
		return result{}, err
	}
	u, err := t.meter.read(ctx)
	if err != nil {
		return result{}, err
	}
	after, err := memory(ctx)
	if err != nil {
		return result{}, err
	}
	if err := t.meter.start(ctx); err != nil {
		return result{}, err
	}
	l := newLedger(tasks)
	took, err := l.workThrough(ctx, t.queue, 64, l.enter)
	return result{value: float64(tasks) / took.Seconds(), ops: float64(tasks), extra: map[string]float64{
		enqueueCPU: u.cpu / float64(tasks), "bytes": (after - before) / float64(tasks),
	}}, err
}
