package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

var tasksPerSecond = measure{"tasks/s", more, func(v float64) string { return fmt.Sprintf("%.0f/s", v) }}

// work measures a backlog of tasks whose handlers do nothing.
func work(concurrency, tasks int) scenario {
	return scenario{
		name:     fmt.Sprint("work-", concurrency),
		about:    fmt.Sprintf("%d tasks due, %d handlers at once that do nothing", tasks, concurrency),
		headline: fmt.Sprintf("How many tasks a worker does in a second, if they do nothing, %d at once", concurrency),
		measure:  tasksPerSecond,
		entries:  enterQueues(sluiceName, asynqName, riverFastName, bullName),
		columns:  []column{scriptsColumn, commandsColumn},
		turn:     func(ctx context.Context, t turn) (result, error) { return workTurn(ctx, t, concurrency, tasks) },
	}
}

func workTurn(ctx context.Context, t turn, concurrency, tasks int) (result, error) {
	tasks = t.tasks(tasks)
	if err := t.queue.Fill(ctx, tasks, nil, atOnce); err != nil {
		return result{}, err
	}
	if err := t.meter.start(ctx); err != nil {
		return result{}, err
	}
	l := newLedger(tasks)
	took, err := l.workThrough(ctx, t.queue, concurrency, l.enter)
	if err != nil {
		return result{}, err
	}
	return result{value: float64(tasks) / took.Seconds(), ops: float64(tasks)}, nil
}

// enqueue measures enqueues of one task at a time, from some goroutines. Batches are the
// ceiling: as many tasks with few commands.
func enqueue(name string, goroutines, tasks int, about string, due func(id int) time.Time) scenario {
	return scenario{
		name:    name,
		about:   fmt.Sprintf("goroutines: %d; %d tasks, one a call except in batches, %s; the waits are of calls", goroutines, tasks, about),
		measure: tasksPerSecond,
		entries: enterQueues(sluiceName, sluiceName+" on AutoPipeline", asynqName, riverName, bullName, batchesName),
		columns: []column{commandsColumn, serverCPUColumn, allocsColumn},
		turn: func(ctx context.Context, t turn) (result, error) {
			return callsTurn(ctx, t, goroutines, tasks, due)
		},
	}
}

// callsTurn enqueues tasks, and times each call.
func callsTurn(ctx context.Context, t turn, goroutines, tasks int, due func(id int) time.Time) (result, error) {
	tasks = t.tasks(tasks)
	if q, ok := t.queue.(selfTimed); ok {
		return selfTimedTurn(ctx, t, q, goroutines, tasks, due)
	}
	size, enqueue := 1, func(ctx context.Context, from, _ int) error { return t.queue.Enqueue(ctx, from, nil, due(from)) }
	if b, ok := t.queue.(batcher); ok {
		size, enqueue = batchSize, func(ctx context.Context, from, to int) error { return b.EnqueueMany(ctx, from, to, due) }
	}
	// Connections and scripts first: they would show in the waits.
	err := inParallel(ctx, goroutines, goroutines, func(ctx context.Context, i int) error {
		return enqueue(ctx, tasks+i*size, tasks+i*size+size)
	})
	if err != nil {
		return result{}, err
	}
	if err := t.meter.start(ctx); err != nil {
		return result{}, err
	}
	times := make([]time.Duration, (tasks+size-1)/size)
	r, err := enqueueTurn(tasks, func(n int) error {
		return inParallel(ctx, goroutines, len(times), func(ctx context.Context, i int) error {
			began := time.Now()
			defer func() { times[i] = time.Since(began) }()
			return enqueue(ctx, i*size, min(i*size+size, n))
		})
	})
	r.waits = waitsOf(times)
	r.held = tasks + goroutines*size
	return r, err
}

// selfTimedTurn is a turn of callsTurn that the queue times.
func selfTimedTurn(ctx context.Context, t turn, q selfTimed, callers, tasks int, due func(id int) time.Time) (result, error) {
	if _, _, err := q.EnqueueTimed(callers, tasks, callers, due); err != nil { // warms up
		return result{}, err
	}
	if err := t.meter.start(ctx); err != nil {
		return result{}, err
	}
	took, times, err := q.EnqueueTimed(callers, 0, tasks, due)
	return result{value: float64(tasks) / took.Seconds(), ops: float64(tasks), waits: waitsOf(times), held: tasks + callers}, err
}

// in15Minutes is the due time of an order that must be paid within 15 minutes.
func in15Minutes(int) time.Time { return time.Now().Add(15 * time.Minute) }

// enqueueBatch measures the quickest way to enqueue many tasks.
func enqueueBatch() scenario {
	return scenario{
		name:    "enqueue-batch",
		about:   "200000 tasks in the quickest way there is: batches of 5,000 (EnqueueBatch, InsertManyFast, addBulk); asynq from 64 goroutines",
		measure: tasksPerSecond,
		entries: enterQueues(sluiceName, asynqName, riverName, bullName),
		turn: func(ctx context.Context, t turn) (result, error) {
			return enqueueTurn(t.tasks(200_000), func(n int) error { return t.queue.Fill(ctx, n, nil, atOnce) })
		},
	}
}

func enqueueTurn(tasks int, fill func(n int) error) (result, error) {
	began := time.Now()
	if err := fill(tasks); err != nil {
		return result{}, err
	}
	return result{value: float64(tasks) / time.Since(began).Seconds(), ops: float64(tasks), held: tasks}, nil
}

const earliest = "earliest"

func inTime(v float64) string { return short(time.Duration(v)) }

// late measures how late tasks start that are due at random times.
func late(name string, rate func(e entrant) int, length time.Duration, contenders ...string) scenario {
	return scenario{
		name:     name,
		about:    fmt.Sprintf("tasks due at random over %v, 64 handlers: how late they start (99%%); rates below", length),
		headline: "Tasks that are due at random times: how late 99 of 100 start at the most",
		measure:  duration,
		entries:  enterQueues(contenders...),
		length:   length,
		columns:  []column{{earliest, slices.Min[[]float64], inTime}, {"rate", median, whole}},
		turn: func(ctx context.Context, t turn) (result, error) {
			return lateTurn(ctx, t, rate(t.entrant))
		},
	}
}

// lateTurn compares with the clock of this machine, on which the server runs too.
func lateTurn(ctx context.Context, t turn, rate int) (result, error) {
	if t.quick {
		rate = min(rate, 2000)
	}
	tasks := int(float64(rate) * t.length.Seconds())
	// All tasks are enqueued before the first is due, except by the slowest contender.
	first := time.Now().Add(time.Duration(tasks)*30*time.Microsecond + 500*time.Millisecond)
	due := make([]time.Time, tasks)
	for i := range due {
		due[i] = first.Add(randomUpTo(t.length))
	}
	if err := t.queue.Fill(ctx, tasks, nil, func(id int) time.Time { return due[id] }); err != nil {
		return result{}, err
	}
	started := make([]time.Duration, tasks)
	l := newLedger(tasks)
	_, err := l.workThrough(ctx, t.queue, 64, func(id int) {
		started[id] = time.Since(due[id])
		l.enter(id)
	})
	if err != nil {
		return result{}, err
	}
	r := result{waits: waitsOf(started), extra: map[string]float64{"rate": float64(rate), earliest: float64(slices.Min(started))}}
	r.value = float64(r.waits.ValueAtQuantile(99))
	return r, nil
}

// halfRate returns about half of the rate that a contender reaches in work-64, on a slow machine.
func halfRate(e entrant) int {
	switch e.name {
	case sluiceName:
		return 25_000
	case riverName, riverFastName, bullName:
		return 3500
	}
	return 2000
}
