package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

// large measures for how long tasks with large payloads keep the server from anything else.
func large(name string, payload int) scenario {
	var columns []column
	for _, op := range largeOperations {
		columns = append(columns, column{op, median, inTime})
	}
	return scenario{
		name: name,
		about: fmt.Sprintf("250 tasks with payloads of %d KB: the slowest command, by SLOWLOG (%v at least), of all operations and of each;"+
			" in worker, a Worker's handler fails 3 times with each task; the waits are a bystander's, for PING", payload>>10, slowThreshold),
		measure: duration,
		entries: []entrant{
			{name: sluiceName, settings: "in large: WithMaxAttempts(3)", openQueue: openLarge},
			{name: floorName, settings: "in large: one ZADD, HSET, HGET, ZREM or HDEL a task, one at a time", openQueue: openLargeFloor},
		},
		columns: columns,
		turn:    func(ctx context.Context, t turn) (result, error) { return largeTurn(ctx, t, payload) },
	}
}

var largeOperations = []string{
	"enqueue", "peek", "claim", "extend", "retry", "bury", "dead", "revive", "dequeue", "purge", "worker",
}

// largeQueue is a queue whose operations are carried out one after the other.
type largeQueue interface {
	steps(tasks []sluice.Task) []largeStep
}

// largeStep is one of largeOperations. One may occur several times.
type largeStep struct {
	operation string
	do        func(ctx context.Context) error
}

func largeTurn(ctx context.Context, t turn, payload int) (r result, err error) {
	tasks := make([]sluice.Task, 250)
	if t.quick {
		tasks = tasks[:10]
	}
	bytes := make([]byte, payload)
	for i := range tasks {
		tasks[i] = sluice.Task{ID: taskID(i), Payload: bytes}
	}
	q, ok := t.queue.(largeQueue)
	if !ok {
		return result{}, errors.New("not a queue for large tasks")
	}
	log, err := openSlowLog(ctx, t.setup.Addr)
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, log.close(context.WithoutCancel(ctx))) }()
	bystander := watchPings(ctx, t.setup.Addr)
	r.extra = map[string]float64{}
	for _, s := range q.steps(tasks) {
		if err = largeOperation(ctx, s, log, &r); err != nil {
			err = fmt.Errorf("%s: %w", s.operation, err)
			break
		}
	}
	waits, failed := bystander()
	r.waits = waits
	r.failures.add(failed)
	return r, err
}

// largeOperation carries out one step, and notes its slowest command.
func largeOperation(ctx context.Context, s largeStep, log *slowLog, r *result) error {
	if err := log.reset(ctx); err != nil {
		return err
	}
	if err := s.do(ctx); err != nil {
		return err
	}
	slowest, err := log.slowest(ctx)
	r.extra[s.operation] = max(r.extra[s.operation], float64(slowest))
	r.value = max(r.value, float64(slowest))
	return err
}

// watchPings sends PINGs from a client of its own until stop is called, which returns how
// long they took.
func watchPings(ctx context.Context, addr string) (stop func() (*hdrhistogram.Histogram, error)) {
	rdb := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute, MaxRetries: -1})
	waits := newWaits()
	over := make(chan error)
	going, end := context.WithCancel(ctx)
	go func() {
		for going.Err() == nil {
			began := time.Now()
			if err := rdb.Ping(ctx).Err(); err != nil {
				over <- err
				return
			}
			_ = waits.RecordValue(int64(time.Since(began)))
			sleep(going, 500*time.Microsecond)
		}
		over <- nil
	}()
	return func() (*hdrhistogram.Histogram, error) {
		end()
		err := <-over
		return waits, errors.Join(err, rdb.Close())
	}
}

// largeTasks is the queue of Sluice.
type largeTasks struct{ taskQueue }

func openLarge(s setup) (queue, error) {
	q, err := newTaskQueue(s, sluice.WithMaxAttempts(3))
	return largeTasks{q}, err
}

func (q largeTasks) steps(tasks []sluice.Task) []largeStep {
	var claimed []sluice.Entry
	enqueue := largeStep{"enqueue", func(ctx context.Context) error {
		_, err := q.EnqueueBatch(ctx, tasks)
		return err
	}}
	claim := largeStep{"claim", func(ctx context.Context) (err error) {
		claimed, err = q.Claim(ctx, len(tasks), time.Hour)
		return allOf(tasks, len(claimed), err)
	}}
	each := func(do func(ctx context.Context, e sluice.Entry) error) func(context.Context) error {
		return func(ctx context.Context) error {
			for _, e := range claimed {
				if err := do(ctx, e); err != nil {
					return err
				}
			}
			return nil
		}
	}
	return []largeStep{
		enqueue,
		{"peek", func(ctx context.Context) error {
			found, err := q.Peek(ctx, len(tasks))
			return allOf(tasks, len(found), err)
		}},
		claim,
		{"extend", each(func(ctx context.Context, e sluice.Entry) error { return q.Extend(ctx, e, time.Hour) })},
		{"retry", each(func(ctx context.Context, e sluice.Entry) error { return q.Retry(ctx, 0, "failed", e) })},
		claim,
		{"bury", each(func(ctx context.Context, e sluice.Entry) error { return q.Bury(ctx, "no", e) })},
		{"dead", func(ctx context.Context) error {
			letters, err := q.List(ctx, sluice.StateDead, sluice.TaskInfo{}, len(tasks))
			return allOf(tasks, len(letters), err)
		}},
		{"revive", func(ctx context.Context) error { return q.reviveAll(ctx, tasks) }},
		claim,
		{"dequeue", func(ctx context.Context) error { return q.Dequeue(ctx, claimed...) }},
		enqueue,
		{"purge", q.Purge},
		enqueue,
		{"worker", func(ctx context.Context) error { return q.failAll(ctx, len(tasks)) }},
	}
}

func (q largeTasks) reviveAll(ctx context.Context, tasks []sluice.Task) error {
	ids := make([]string, len(tasks))
	for i := range tasks {
		ids[i] = tasks[i].ID
	}
	revived, err := q.Revive(ctx, ids...)
	return allOf(tasks, revived, err)
}

// allOf returns an error unless an operation has handled all tasks.
func allOf(tasks []sluice.Task, n int, err error) error {
	if err == nil && n != len(tasks) {
		err = fmt.Errorf("%d of %d tasks", n, len(tasks))
	}
	return err
}

// failAll runs a worker whose handler fails, until all n tasks are dead letters.
func (q largeTasks) failAll(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	w := &sluice.Worker{
		Queue: q.Queue, Concurrency: 64,
		Handler: func(context.Context, sluice.Entry) error { return errors.New("no") },
		Backoff: func(int, error) time.Duration { return time.Millisecond },
	}
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	for ctx.Err() == nil && w.Stats().Buried < int64(n) {
		sleep(ctx, 5*time.Millisecond)
	}
	cancel()
	err := <-ended
	if buried := w.Stats().Buried; buried < int64(n) {
		err = errors.Join(err, fmt.Errorf("%d of %d tasks buried", buried, n))
	}
	return err
}
