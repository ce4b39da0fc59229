package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluice-go/sluice"
)

// onceQueue has tasks that are enqueued with DuplicatesOnce only, until that is acknowledged, and
// again. Workers and Claim consume it. Nothing of it is cancelled or buried, so that each ID is
// finished once, and then done for good.
const onceQueue = "once"

const (
	// retention outlasts a round, and the clock that is set ahead.
	retention = 24 * time.Hour
	// onceEvery is how often a new ID comes up, and onceRecent for how many of these all clients
	// enqueue it.
	onceEvery  = 15 * time.Millisecond
	onceRecent = 60
)

// policyOf returns the policy of a handle by which a queue is consumed.
func policyOf(name string) sluice.Duplicates {
	if name == onceQueue {
		return sluice.DuplicatesOnce
	}
	return sluice.DuplicatesReplace
}

// onceID returns an ID that other clients enqueue at the same time, or one of any time before.
func (c *client) onceID(rng *rand.Rand) string {
	n := int((monotonic() - c.Began) / onceEvery)
	if rng.IntN(10) == 0 {
		return fmt.Sprintf("once-%d", rng.IntN(n+1))
	}
	return fmt.Sprintf("once-%d", max(n-rng.IntN(onceRecent), 0))
}

// enqueueOnce enqueues tasks of a few IDs until that is acknowledged, and then sometimes once more.
func (c *client) enqueueOnce(rng *rand.Rand) {
	work(rng, 60*time.Millisecond)
	ids := []string{c.onceID(rng)}
	if rng.IntN(6) == 0 {
		for range 1 + rng.IntN(12) {
			ids = append(ids, c.onceID(rng)) // perhaps one twice
		}
	}
	for again := true; again && c.produce.Err() == nil; {
		if ids = c.tryOnce(rng, ids); len(ids) > 0 { // without an answer
			work(rng, 30*time.Millisecond)
			continue
		}
		again = rng.IntN(4) == 0
	}
	if rng.IntN(300) == 0 {
		ctx, cancel := withShortContext(context.Background(), rng, 12)
		defer cancel()
		c.list(ctx, rng, onceQueue, c.queue(onceQueue, sluice.DuplicatesOnce))
	}
}

// tryOnce enqueues a task of each ID, and returns the IDs of which it does not know that they are
// in the queue.
func (c *client) tryOnce(rng *rand.Rand, ids []string) (left []string) {
	tasks, recs := make([]sluice.Task, len(ids)), make([]record, len(ids))
	for i, id := range ids {
		version := fmt.Sprintf("%s/%d", c.Process, c.seq.Add(1))
		tasks[i] = sluice.Task{ID: id, Payload: []byte(version + " "), Take: c.takeOnce(id), Group: c.groupOnce(id)}
		if rng.IntN(2) == 0 {
			tasks[i].Delay = upTo(rng, 100*time.Millisecond)
		}
		recs[i] = c.begin(record{Op: opEnqueue, Name: onceQueue, ID: id, Version: version, Delay: tasks[i].Delay, Policy: int(sluice.DuplicatesOnce),
			Take: recorded(tasks[i].Take), Group: tasks[i].Group, Batch: true})
	}
	ctx, cancel := withShortContext(context.Background(), rng, 12)
	defer cancel()
	outcomes, err := c.queue(onceQueue, sluice.DuplicatesOnce).EnqueueBatch(ctx, tasks)
	for i, rec := range recs {
		result := resultOf(err)
		if i < len(outcomes) && outcomes[i] != 0 {
			rec.Outcome, result = int(outcomes[i]), done
		}
		if c.endBy(ctx, rec, result); result != done {
			left = append(left, ids[i])
		}
	}
	return left
}

// resultMark is the result that a handler of the queue records.
func resultMark(handler record) string { return fmt.Sprintf("%s#%d", handler.Process, handler.Seq) }

// recordResult records the result of a handler. That must be possible as long as the handler runs
// and its task is its own.
func (c *client) recordResult(ctx context.Context, rec record) {
	rec.Process = c.Process // it is not in what is written
	if err := sluice.RecordResult(ctx, []byte(resultMark(rec))); err != nil && sluice.LeaseValid(ctx) {
		c.end(c.begin(record{Op: opStuck, Name: "RecordResult"}), resultOf(err))
	}
}

// doneTask is a task that the library says is done.
type doneTask struct {
	attempt int
	result  string
}

// readDone reads, through the library, what is done when everything is quiet.
func (r *round) readDone() error {
	q, err := sluice.NewQueue(r.server.rdb, onceQueue)
	if err != nil {
		return err
	}
	r.done = map[string]doneTask{}
	for t, err := range q.All(context.Background(), sluice.StateDone) {
		if err != nil {
			return fmt.Errorf("what is done in %s: %w", onceQueue, err)
		}
		r.done[t.ID] = doneTask{t.Attempt, string(t.Result)}
	}
	s, err := q.Stats(context.Background())
	if err == nil && s.Done != int64(len(r.done)) {
		err = fmt.Errorf("%s retains %d tasks, and %d are listed", onceQueue, s.Done, len(r.done))
	}
	return err
}
