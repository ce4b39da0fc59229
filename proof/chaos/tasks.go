package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// Queues, by how their tasks are taken. The lease of all claims of a queue is the
// same, so that a lease in the witness says when it was given.
const (
	loopQueue  = "loop"  // by Claim, in loops of our own
	workQueue  = "work"  // by Workers
	popQueue   = "pop"   // by Pop
	plainQueue = "plain" // by Claim; tasks have no payload, and are enqueued once

	lease       = 400 * time.Millisecond
	maxAttempts = 5
	sharedIDs   = 40 // IDs that everybody enqueues again and again
)

var queues = []string{loopQueue, workQueue, popQueue, plainQueue}

// queue returns a queue, with one duplicate policy or another.
func (c *client) queue(name string, policy sluice.Duplicates) *sluice.Queue {
	q, err := sluice.NewQueue(c.rdb, name, sluice.WithDuplicates(policy),
		sluice.WithMaxAttempts(maxAttempts), sluice.WithPollInterval(200*time.Millisecond))
	if err != nil {
		panic(err)
	}
	return q
}

// enqueue puts one task in, or a batch.
func (c *client) enqueue(rng *rand.Rand) {
	work(rng, 60*time.Millisecond)
	name := queues[rng.IntN(len(queues))]
	policy := sluice.Duplicates(rng.IntN(4))
	n := 1
	if rng.IntN(6) == 0 {
		n = 2 + rng.IntN(12)
	}
	var tasks []sluice.Task
	var recs []record
	for range n {
		t, rec := c.task(rng, name)
		rec.Policy = int(policy)
		tasks, recs = append(tasks, t), append(recs, c.begin(rec))
	}
	ctx, cancel := hurried(context.Background(), rng, 12)
	defer cancel()
	q := c.queue(name, policy)
	var outcomes []sluice.Outcome
	var err error
	if n == 1 {
		outcomes = make([]sluice.Outcome, 1)
		outcomes[0], err = q.Enqueue(ctx, tasks[0])
	} else {
		outcomes, err = q.EnqueueBatch(ctx, tasks)
	}
	for i, rec := range recs {
		if err == nil {
			rec.Outcome = int(outcomes[i])
		}
		c.endBy(ctx, rec, verdict(err))
	}
}

// task makes a task, with a payload that no other has, unless it is plain.
func (c *client) task(rng *rand.Rand, name string) (sluice.Task, record) {
	version := fmt.Sprintf("%s/%d", c.Process, c.seq.Add(1))
	t := sluice.Task{ID: sharedID(rng)}
	if name == plainQueue || rng.IntN(3) == 0 {
		t.ID = version
	}
	if rng.IntN(3) > 0 {
		t.Delay = upTo(rng, 300*time.Millisecond)
	}
	rec := record{Op: opEnqueue, Name: name, ID: t.ID, Version: version, Delay: t.Delay}
	if name != plainQueue {
		padding := rng.IntN(100)
		if rng.IntN(100) == 0 {
			padding = 5000
		}
		t.Payload = []byte(version + " " + strings.Repeat(":", padding))
	}
	return t, rec
}

func sharedID(rng *rand.Rand) string { return fmt.Sprintf("shared-%d", rng.IntN(sharedIDs)) }

// versionOf is what a payload begins with.
func versionOf(id, payload string) string {
	if payload == "" {
		return id
	}
	version, _, _ := strings.Cut(payload, " ")
	return version
}

// meddle does what an operator does, or a user who changes his mind.
func (c *client) meddle(rng *rand.Rand) {
	work(rng, 60*time.Millisecond)
	name := queues[rng.IntN(3)]
	q, id := c.queue(name, sluice.Replace), sharedID(rng)
	ctx, cancel := hurried(context.Background(), rng, 12)
	defer cancel()
	switch rng.IntN(5) {
	case 0, 1:
		if rng.IntN(20) == 0 {
			rec := c.begin(record{Op: opUnlockAll, Name: "all"})
			c.endBy(ctx, rec, verdict(c.locker.UnlockAll(ctx)))
		}
		rec := c.begin(record{Op: opCancel, Name: name, ID: id})
		was, err := q.Cancel(ctx, id)
		c.endBy(ctx, rec, verdictOf(was, err))
	case 2, 3:
		delay := upTo(rng, 300*time.Millisecond)
		rec := c.begin(record{Op: opReschedule, Name: name, ID: id, Delay: delay})
		was, err := q.Reschedule(ctx, id, delay)
		c.endBy(ctx, rec, verdictOf(was, err))
	case 4:
		dead, err := q.Dead(ctx, 5)
		if err != nil || len(dead) == 0 {
			return
		}
		rec := c.begin(record{Op: opRevive, Name: name, ID: dead[0].ID})
		n, err := q.Revive(ctx, dead[0].ID)
		c.endBy(ctx, rec, verdictOf(n == 1, err))
	}
}

func verdictOf(was bool, err error) result {
	if err == nil && !was {
		return no
	}
	return verdict(err)
}

// loop takes tasks by Claim, and says what becomes of them in all ways.
func (c *client) loop() {
	rng := c.rng()
	for c.consume.Err() == nil {
		name := loopQueue
		if rng.IntN(3) == 0 {
			name = plainQueue
		}
		q := c.queue(name, sluice.Replace)
		if rng.IntN(2) == 0 {
			short, cancel := context.WithTimeout(c.consume, 100*time.Millisecond)
			_ = q.Wait(short)
			cancel()
		}
		ctx, cancel := hurried(c.consume, rng, 30)
		rec := c.begin(record{Op: opClaiming, Name: name})
		entries, err := q.Claim(ctx, 1+rng.IntN(6), lease)
		cancel()
		got := c.delivered(opDelivery, name, rec.Call, entries)
		c.end(rec, verdict(err))
		switch {
		case err != nil || len(entries) == 0:
			work(rng, 10*time.Millisecond)
		case rng.IntN(4) == 0:
			work(rng, 3*time.Millisecond)
			c.dequeue(rng, q, got, entries)
		default:
			for i, e := range entries {
				c.treat(rng, q, got[i], e)
			}
		}
	}
}

// delivered records what was handed out.
func (c *client) delivered(what op, name string, call time.Duration, entries []sluice.Entry) (recs []record) {
	for _, e := range entries {
		rec := record{Op: what, Name: name, ID: e.ID, Version: versionOf(e.ID, string(e.Payload)),
			Score: e.Score, Delivery: e.Score, Attempt: e.Attempt}
		rec.Seq, rec.Call = c.seq.Add(1), call
		recs = append(recs, c.end(rec, done))
	}
	return recs
}

// treat does the work on one task, well or badly.
func (c *client) treat(rng *rand.Rand, q *sluice.Queue, got record, e sluice.Entry) {
	work(rng, 4*time.Millisecond)
	if rng.IntN(8) == 0 {
		if e = c.extend(rng, q, got, e); e.ID == "" {
			return
		}
	}
	ctx, cancel := hurried(context.Background(), rng, 30)
	defer cancel()
	switch way := rng.IntN(100); {
	case way < 8:
		delay := upTo(rng, 100*time.Millisecond)
		rec := c.begin(about(opRetry, got, e))
		c.endBy(ctx, rec, verdict(q.Retry(ctx, e, delay)))
	case way < 13:
		rec := c.begin(about(opRelease, got, e))
		c.endBy(ctx, rec, verdict(q.Release(ctx, e)))
	case way < 15:
		rec := c.begin(about(opBury, got, e))
		c.endBy(ctx, rec, verdict(q.Bury(ctx, e, "no use")))
	case way < 17: // nothing is said of it
	case way < 19: // too late, perhaps
		work(rng, 2*lease)
		c.dequeue(rng, q, []record{got}, []sluice.Entry{e})
	default:
		c.dequeue(rng, q, []record{got}, []sluice.Entry{e})
	}
}

// about is a record of what is said of a delivery.
func about(what op, got record, e sluice.Entry) record {
	return record{Op: what, Name: got.Name, ID: e.ID, Score: e.Score, Delivery: got.Delivery}
}

// dequeue finishes tasks, sometimes twice: after a lost reply that is how to be
// sure, else it must be refused.
func (c *client) dequeue(rng *rand.Rand, q *sluice.Queue, got []record, entries []sluice.Entry) {
	for again := true; again; {
		var recs []record
		for i, e := range entries {
			recs = append(recs, c.begin(about(opDequeue, got[i], e)))
		}
		ctx, cancel := hurried(context.Background(), rng, 30)
		err := q.Dequeue(ctx, entries...)
		for i, rec := range recs {
			c.endBy(ctx, rec, verdictOn(entries[i].ID, err))
		}
		cancel()
		again = errors.Is(err, sluice.ErrUnknown) && rng.IntN(2) == 0 || rng.IntN(60) == 0
	}
}

// verdictOn is what an error for several tasks says of one of them: those that a
// StaleError doesn't name were dealt with.
func verdictOn(id string, err error) result {
	var refusal *sluice.StaleError
	switch {
	case !errors.As(err, &refusal) || errors.Is(err, sluice.ErrUnknown):
		return verdict(err)
	case slices.Contains(refusal.IDs, id):
		return stale
	default:
		return done
	}
}

// extend is a heartbeat. It returns the entry with its new receipt, or none.
func (c *client) extend(rng *rand.Rand, q *sluice.Queue, got record, e sluice.Entry) sluice.Entry {
	ctx, cancel := hurried(context.Background(), rng, 30)
	defer cancel()
	rec := c.begin(about(opExtend, got, e))
	extended, err := q.Extend(ctx, e, lease)
	c.endBy(ctx, rec, verdict(err))
	return extended
}

// popLoop takes tasks by Pop.
func (c *client) popLoop() {
	rng := c.rng()
	q := c.queue(popQueue, sluice.Replace)
	for c.consume.Err() == nil {
		rec := c.begin(record{Op: opPopping, Name: popQueue})
		entries, err := q.Pop(c.consume, 1+rng.IntN(4))
		c.delivered(opPop, popQueue, rec.Call, entries)
		c.end(rec, verdict(err))
		if err != nil || len(entries) == 0 {
			work(rng, 20*time.Millisecond)
		}
	}
}

// peekLoop takes tasks without a lease: whoever removes one first has it.
func (c *client) peekLoop() {
	rng := c.rng()
	q := c.queue(loopQueue, sluice.Replace)
	for c.consume.Err() == nil {
		work(rng, 100*time.Millisecond)
		entries, err := q.Peek(c.consume, 2)
		if err != nil || len(entries) == 0 {
			continue
		}
		rec := c.begin(record{Op: opDequeue, Name: loopQueue, ID: entries[0].ID, Score: entries[0].Score})
		c.end(rec, verdict(q.Dequeue(context.Background(), entries[0])))
	}
}

var errFailed = errors.New("failed")

// startWorker has a Worker take tasks.
func (c *client) startWorker() {
	w := &sluice.Worker{
		Queue: c.queue(workQueue, sluice.Replace), Handler: c.handle, Concurrency: 8, Lease: lease,
		Backoff: func(int, error) time.Duration { return rand.N(100 * time.Millisecond) },
		Grace:   5 * time.Second,
	}
	c.eating.Go(func() {
		if err := w.Run(c.consume); err != nil {
			c.end(c.begin(record{Op: opStuck, Name: "Worker.Run"}), verdict(err))
		}
	})
}

// handle is the Worker's handler. What it is going to return is on record before.
func (c *client) handle(ctx context.Context, e sluice.Entry) error {
	rec := c.begin(record{Op: opHandle, Name: workQueue, ID: e.ID, Version: versionOf(e.ID, string(e.Payload)),
		Score: e.Score, Delivery: e.Score, Attempt: e.Attempt})
	until := time.Now()
	switch way := rand.IntN(100); {
	case way < 3: // longer than the lease, which is extended
		until = until.Add(lease + rand.N(lease))
	case way < 80:
		until = until.Add(rand.N(4 * time.Millisecond))
	}
	for now := monotonic(); ctx.Err() == nil; now = monotonic() {
		rec.Until = now
		if !time.Now().Before(until) {
			break
		}
		time.Sleep(min(time.Until(until), 20*time.Millisecond)) // the work
	}
	switch way := rand.IntN(100); {
	case way < 10:
		c.end(rec, no)
		return errFailed
	case way < 12:
		c.end(rec, refused)
		return sluice.Permanent(errFailed)
	case way < 13:
		c.end(rec, no)
		panic("the handler's")
	default:
		c.end(rec, done)
		return nil
	}
}
