package sluice

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"
)

// maxQueues is the most queues that NewQueues makes.
const maxQueues = 1024

// Queues are queues that share the tasks of one name, so that several primaries of a Cluster do the
// work of what would be one queue. Each task belongs to one of them, which its ID determines. See
// docs/queues.md for when that pays.
//
// Each is a queue of its own: its order, limits, pause and dead letters are its own, and an
// operation on all of them is a loop.
type Queues []*Queue

// NewQueues returns n queues on rdb, 1 to 1024, with the names name:0 to name:n-1 and the same
// options. It does no I/O. On a Cluster they lie in different slots as other names do, at random:
// let n be several times the number of primaries.
//
// All programs must use the same n: with another one they look for a task in another queue. The
// errors are those of NewQueue, and ErrInvalid for an n that is out of range.
func NewQueues(rdb redis.UniversalClient, name string, n int, opts ...QueueOption) (Queues, error) {
	if n < 1 || n > maxQueues {
		return nil, fmt.Errorf("sluice: new queues: %w: n must be 1 to %d", ErrInvalid, maxQueues)
	}
	qs := make(Queues, n)
	for i := range qs {
		q, err := NewQueue(rdb, name+":"+strconv.Itoa(i), opts...)
		if err != nil {
			return nil, err
		}
		qs[i] = q
	}
	return qs, nil
}

// Of returns the queue to which the task with this ID belongs: the ID's CRC-32 (IEEE) modulo n says
// which. Enqueue, Cancel, Get, and whatever names a task, belong there:
//
//	outcome, err := queues.Of(task.ID).Enqueue(ctx, task)
func (qs Queues) Of(id string) *Queue { return qs[qs.indexOf(id)] }

func (qs Queues) indexOf(id string) int {
	return int(crc32.ChecksumIEEE([]byte(id)) % uint32(len(qs))) //nolint:gosec // at most maxQueues
}

// EnqueueBatch puts each task into the queue to which it belongs, as Queue.EnqueueBatch does, all
// queues at the same time. There is an outcome for each task, in the order given; 0 is that of a
// task which is not known to be in its queue.
//
// A queue that fails, or whose server does not answer, keeps no other one from its tasks; the error
// joins those of all. ErrInvalid: nothing was sent.
func (qs Queues) EnqueueBatch(ctx context.Context, ts []Task) ([]Outcome, error) {
	const op = "enqueue batch"
	if len(qs) == 0 {
		return nil, invalid(op, "there are no Queues")
	}
	remember := true
	for _, q := range qs {
		if err := q.check(op); err != nil {
			return nil, err
		}
		remember = remember && q.remembers()
	}
	if err := checkTasks(ctx, ts, remember); err != nil {
		return nil, fmt.Errorf("sluice: %s: %w", op, err)
	}
	parts, places := make([][]Task, len(qs)), make([][]int, len(qs)) // the tasks of each queue, and which ones these are
	for at, t := range ts {
		if at%checkEvery == checkEvery-1 && ctx.Err() != nil {
			return nil, fmt.Errorf("sluice: %s: %w", op, ctx.Err())
		}
		i := qs.indexOf(t.ID)
		parts[i], places[i] = append(parts[i], t), append(places[i], at)
	}
	outcomes, errs := make([]Outcome, len(ts)), make([]error, len(qs))
	var all sync.WaitGroup
	for i, part := range parts {
		if len(part) == 0 {
			continue
		}
		all.Go(func() { // it ends with ctx, at the latest; EnqueueBatch waits for it
			var done []Outcome
			done, errs[i] = qs[i].EnqueueBatch(ctx, part)
			for j, outcome := range done {
				outcomes[places[i][j]] = outcome
			}
		})
	}
	all.Wait()
	return outcomes, errors.Join(errs...)
}

// Workers returns a Worker for each queue with the fields of w, for a Pool, which shares its
// handlers among them. w's Queue is not used. Each Periodic is given to the queue to which its ID
// belongs. A Concurrency, and Limits, are each queue's.
//
//	pool := &sluice.Pool{Workers: queues.Workers(&sluice.Worker{Handler: handler}), Concurrency: 64}
func (qs Queues) Workers(w *Worker) []*Worker {
	workers := make([]*Worker, len(qs))
	for i, q := range qs {
		workers[i] = &Worker{
			Queue: q, Handler: w.Handler, Use: w.Use, Concurrency: w.Concurrency, Weight: w.Weight, Lease: w.Lease, Timeout: w.Timeout,
			Backoff: w.Backoff, Grace: w.Grace, Label: w.Label, Limits: w.Limits, Logger: w.Logger,
		}
	}
	for _, p := range w.Periodic {
		i := qs.indexOf(p.ID)
		workers[i].Periodic = append(workers[i].Periodic, p)
	}
	return workers
}
