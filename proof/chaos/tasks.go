package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
	leases "github.com/sluice-go/sluice/internal/lease"
)

// Queues, by how their tasks are consumed. All claims have the same lease, so that a lease's
// end in the log says when the claim was made.
const (
	loopQueue  = "loop"  // by Claim, in a loop
	workQueue  = "work"  // by Workers
	popQueue   = "pop"   // by Pop
	plainQueue = "plain" // by Claim; tasks have no payload, and are enqueued once
	manyQueues = "many"  // several, of NewQueues; by Claim and by a Pool

	lease        = 400 * time.Millisecond
	maxAttempts  = 5
	pollInterval = 200 * time.Millisecond
	sharedIDs    = 40 // IDs that all clients enqueue again and again
)

var (
	commonQueues = []string{loopQueue, workQueue, popQueue, manyQueues, plainQueue}
	manyNames    = []string{manyQueues + ":0", manyQueues + ":1", manyQueues + ":2"}

	// drained are the queues that are empty when everything is quiet.
	drained = append([]string{loopQueue, workQueue, popQueue, plainQueue, onceQueue}, manyNames...)
)

// isOfMany says whether a queue is one of manyQueues.
func isOfMany(queue string) bool { return slices.Contains(manyNames, queue) }

// queueHandle is what the goroutines share that want the same.
type queueHandle struct {
	name   string
	policy sluice.Duplicates
}

// queue returns the queue of a name that has one, with a duplicate policy.
func (c *client) queue(name string, policy sluice.Duplicates) *sluice.Queue {
	return c.queues(name, policy)[0]
}

// queues returns the queues of a name with a duplicate policy, the same ones each time.
func (c *client) queues(name string, policy sluice.Duplicates) sluice.Queues {
	handle := queueHandle{name, policy}
	if qs, ok := c.handles.Load(handle); ok {
		return qs.(sluice.Queues)
	}
	opts := []sluice.QueueOption{sluice.WithDuplicates(policy), sluice.WithMaxAttempts(maxAttempts), sluice.WithPollInterval(pollInterval)}
	switch name {
	case onceQueue:
		opts = append(opts, sluice.WithRetention(retention), sluice.WithMaxAttempts(-1))
	case safeQueue:
		opts = append(opts, sluice.WithQueueReplicas(1))
	}
	qs := make(sluice.Queues, 1)
	var err error
	if name == manyQueues {
		qs, err = sluice.NewQueues(c.rdb, name, len(manyNames), opts...)
	} else {
		qs[0], err = sluice.NewQueue(c.rdb, name, opts...)
	}
	if err != nil {
		panic(err)
	}
	first, _ := c.handles.LoadOrStore(handle, qs)
	return first.(sluice.Queues)
}

// enqueue enqueues one task, a batch, or several tasks from as many goroutines.
func (c *client) enqueue(rng *rand.Rand) {
	work(rng, 60*time.Millisecond+seldom*c.Calm)
	name := commonQueues[rng.IntN(len(commonQueues))]
	policy := sluice.Duplicates(1 + rng.IntN(int(sluice.DuplicatesOnce)-1))
	if rng.IntN(20) > 0 {
		c.enqueueOn(rng, name, policy)
		return
	}
	var all sync.WaitGroup
	for range 12 {
		seed := rng.Uint64()
		all.Go(func() { c.enqueueOn(rand.New(rand.NewPCG(seed, 0)), name, policy) })
	}
	all.Wait()
}

func (c *client) enqueueOn(rng *rand.Rand, name string, policy sluice.Duplicates) {
	n := 1
	if rng.IntN(6) == 0 {
		n = 2 + rng.IntN(12)
	}
	qs := c.queues(name, policy)
	var tasks []sluice.Task
	var recs []record
	for range n {
		t, rec := c.task(rng, name)
		rec.Name, rec.Policy, rec.Batch = qs.Of(t.ID).Name(), int(policy), n > 1
		tasks, recs = append(tasks, t), append(recs, c.begin(rec))
	}
	ctx, cancel := withShortContext(context.Background(), rng, 12)
	defer cancel()
	var outcomes []sluice.Outcome
	var err error
	if n == 1 {
		outcomes = make([]sluice.Outcome, 1)
		outcomes[0], err = qs.Of(tasks[0].ID).Enqueue(ctx, tasks[0])
	} else {
		outcomes, err = qs.EnqueueBatch(ctx, tasks)
	}
	for i, rec := range recs {
		result := resultOf(err)
		if i < len(outcomes) && outcomes[i] != 0 { // an error is of others, in another queue
			rec.Outcome, result = int(outcomes[i]), done
		}
		c.endBy(ctx, rec, result)
	}
}

// task makes a task with a payload that no other task has. A plain task has none.
func (c *client) task(rng *rand.Rand, name string) (sluice.Task, record) {
	version := fmt.Sprintf("%s/%d", c.Process, c.seq.Add(1))
	t := sluice.Task{ID: sharedID(rng)}
	if name == plainQueue || rng.IntN(3) == 0 {
		t.ID = version
	}
	if rng.IntN(3) > 0 {
		t.Delay = upTo(rng, 300*time.Millisecond)
	}
	t.Take, t.Group = c.take(rng), c.group(rng, t.ID)
	rec := record{Op: opEnqueue, ID: t.ID, Version: version, Delay: t.Delay, Take: recorded(t.Take), Group: t.Group}
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

// versionOf returns the version that a payload begins with. That of a periodic task is its
// occurrence.
func versionOf(id, payload string) string {
	if occurrence, ok := occurrenceIn(payload); ok {
		return occurrence
	}
	if payload == "" {
		return id
	}
	version, _, _ := strings.Cut(payload, " ")
	return version
}

// operate calls what operators, and users who change a task, call.
func (c *client) operate(rng *rand.Rand) {
	work(rng, 60*time.Millisecond)
	id := sharedID(rng)
	q := c.queues(commonQueues[rng.IntN(4)], sluice.DuplicatesReplace).Of(id)
	name := q.Name()
	ctx, cancel := withShortContext(context.Background(), rng, 12)
	defer cancel()
	way := rng.IntN(7)
	if c.Calm != 0 && way == 5 {
		return // a queue that is limited or paused keeps tasks waiting
	}
	switch way {
	case 5:
		switch way := rng.IntN(40); {
		case way < 8:
			c.setLimits(ctx, rng)
		case way < 16:
			c.pause(ctx, rng, name, q)
		}
	case 6:
		c.list(ctx, rng, name, q)
	case 0, 1:
		if rng.IntN(20) == 0 {
			rec := c.begin(record{Op: opUnlockAll, Name: "all"})
			c.endBy(ctx, rec, resultOf(c.locker.UnlockAll(ctx)))
		}
		c.cancel(ctx, rng, q, id)
	case 2, 3:
		delay := upTo(rng, 300*time.Millisecond)
		rec := c.begin(record{Op: opReschedule, Name: name, ID: id, Delay: delay})
		was, err := q.Reschedule(ctx, id, delay)
		c.endBy(ctx, rec, resultOfCall(was, err))
	case 4:
		dead, err := q.List(ctx, sluice.StateDead, sluice.TaskInfo{}, 5)
		if err != nil || len(dead) == 0 {
			return
		}
		rec := c.begin(record{Op: opRevive, Name: name, ID: dead[0].ID})
		n, err := q.Revive(ctx, dead[0].ID)
		c.endBy(ctx, rec, resultOfCall(n == 1, err))
	}
}

// cancel cancels a task in one of the three ways.
func (c *client) cancel(ctx context.Context, rng *rand.Rand, q *sluice.Queue, id string) {
	rec := record{Op: opCancel, Name: q.Name(), ID: id}
	switch rng.IntN(3) {
	case 0:
		rec = c.begin(rec)
		was, err := q.Cancel(ctx, id)
		c.endBy(ctx, rec, resultOfCall(was != sluice.StateAbsent, err))
	case 1:
		var ids []string
		var recs []record
		for range 1 + rng.IntN(4) {
			if id := sharedID(rng); !slices.Contains(ids, id) {
				rec.ID = id
				ids, recs = append(ids, id), append(recs, c.begin(rec))
			}
		}
		were, err := q.CancelBatch(ctx, ids...)
		for i, rec := range recs {
			c.endBy(ctx, rec, resultOfCall(i < len(were) && were[i] != sluice.StateAbsent, err))
		}
	default:
		t, err := q.Get(ctx, id)
		if err != nil || t.State == sluice.StateLeased {
			return
		}
		work(rng, 10*time.Millisecond) // it may change meanwhile
		rec.Read = t.Score
		rec = c.begin(rec)
		were, err := q.CancelUnchanged(ctx, t)
		c.endBy(ctx, rec, resultOfCall(err == nil && were[0] != sluice.StateAbsent, err))
	}
}

func resultOfCall(was bool, err error) result {
	if err == nil && !was {
		return no
	}
	return resultOf(err)
}

// loop claims tasks of one of these queues, and another, by Claim, and settles them in every way.
func (c *client) loop(names ...string) {
	rng := c.rng()
	for c.consume.Err() == nil {
		name := names[rng.IntN(len(names))]
		q := c.queue(name, policyOf(name))
		if c.Calm != 0 { // only one that is told claims
			if q.Wait(c.consume) != nil {
				continue
			}
			c.at(told)
		} else if rng.IntN(2) == 0 {
			short, cancel := context.WithTimeout(c.consume, 100*time.Millisecond)
			_ = q.Wait(short)
			cancel()
		}
		ctx, cancel := withShortContext(c.consume, rng, 30)
		rec := c.begin(record{Op: opClaiming, Name: name})
		entries, err := q.Claim(ctx, 1+rng.IntN(6), lease)
		cancel()
		got := c.delivered(opDelivery, name, rec.Call, entries)
		if c.end(rec, resultOf(err)); len(entries) > 0 {
			c.at(withTask)
		}
		switch {
		case err != nil || len(entries) == 0:
			work(rng, 10*time.Millisecond)
		case rng.IntN(4) == 0:
			work(rng, 3*time.Millisecond)
			c.dequeue(rng, q, got, entries)
		default:
			for i, e := range entries {
				c.handleEntry(rng, q, got[i], e)
			}
		}
	}
}

// delivered records the entries that a call has returned.
func (c *client) delivered(what op, name string, call time.Duration, entries []sluice.Entry) (recs []record) {
	for _, e := range entries {
		rec := record{Op: what, Name: name, ID: e.ID, Version: versionOf(e.ID, string(e.Payload)),
			Score: e.Score, Delivery: e.Score, Attempt: e.Attempt, Group: e.Group}
		rec.Seq, rec.Call = c.seq.Add(1), call
		recs = append(recs, c.end(rec, done))
	}
	return recs
}

// handleEntry works on one task, and settles it in one way or another.
func (c *client) handleEntry(rng *rand.Rand, q *sluice.Queue, got record, e sluice.Entry) {
	work(rng, 4*time.Millisecond)
	if rng.IntN(8) == 0 {
		c.extend(rng, q, got, e)
	}
	ctx, cancel := withShortContext(context.Background(), rng, 30)
	defer cancel()
	switch way := rng.IntN(100); {
	case way < 8:
		delay := upTo(rng, 100*time.Millisecond)
		rec := c.begin(about(opRetry, got, e))
		c.endBy(ctx, rec, resultOf(q.Retry(ctx, delay, "failed", e)))
	case way < 13:
		rec := c.begin(about(opRelease, got, e))
		c.endBy(ctx, rec, resultOf(q.Release(ctx, e)))
	case way < 15 && got.Name != onceQueue:
		rec := c.begin(about(opBury, got, e))
		c.endBy(ctx, rec, resultOf(q.Bury(ctx, "no use", e)))
	case way < 17: // not settled
	case way < 19: // perhaps too late
		work(rng, 2*lease)
		c.dequeue(rng, q, []record{got}, []sluice.Entry{e})
	default:
		c.dequeue(rng, q, []record{got}, []sluice.Entry{e})
	}
}

// about returns the record of an operation on a delivery.
func about(what op, got record, e sluice.Entry) record {
	return record{Op: what, Name: got.Name, ID: e.ID, Score: e.Score, Delivery: got.Delivery}
}

// dequeue finishes tasks, sometimes twice: after a lost reply this makes sure of the result;
// otherwise the second call must return ErrStale.
func (c *client) dequeue(rng *rand.Rand, q *sluice.Queue, got []record, entries []sluice.Entry) {
	for again := true; again; {
		var recs []record
		for i, e := range entries {
			recs = append(recs, c.begin(about(opDequeue, got[i], e)))
		}
		ctx, cancel := withShortContext(context.Background(), rng, 30)
		err := q.Dequeue(ctx, entries...)
		for i, rec := range recs {
			c.endBy(ctx, rec, resultFor(entries[i].ID, err))
		}
		cancel()
		again = errors.Is(err, sluice.ErrUnknown) && rng.IntN(2) == 0 || rng.IntN(60) == 0
	}
}

// resultFor returns the result for one of several tasks: a StaleError means that the tasks
// that it does not name were finished.
func resultFor(id string, err error) result {
	var refusal *sluice.StaleError
	switch {
	case !errors.As(err, &refusal) || errors.Is(err, sluice.ErrUnknown):
		return resultOf(err)
	case slices.Contains(refusal.IDs, id):
		return stale
	default:
		return done
	}
}

// extend extends a claim.
func (c *client) extend(rng *rand.Rand, q *sluice.Queue, got record, e sluice.Entry) {
	ctx, cancel := withShortContext(context.Background(), rng, 30)
	defer cancel()
	rec := c.begin(about(opExtend, got, e))
	c.endBy(ctx, rec, resultOf(q.Extend(ctx, e, lease)))
}

// popLoop consumes tasks by Pop.
func (c *client) popLoop() {
	rng := c.rng()
	q := c.queue(popQueue, sluice.DuplicatesReplace)
	for c.consume.Err() == nil {
		rec := c.begin(record{Op: opPopping, Name: popQueue})
		entries, err := q.Pop(c.consume, 1+rng.IntN(4))
		c.delivered(opPop, popQueue, rec.Call, entries)
		c.end(rec, resultOf(err))
		if err != nil || len(entries) == 0 {
			work(rng, 20*time.Millisecond)
		}
	}
}

// peekLoop consumes tasks by Peek and Dequeue, without a lease.
func (c *client) peekLoop() {
	rng := c.rng()
	q := c.queue(loopQueue, sluice.DuplicatesReplace)
	for c.consume.Err() == nil {
		work(rng, 100*time.Millisecond)
		entries, err := q.Peek(c.consume, 2)
		if err != nil || len(entries) == 0 {
			continue
		}
		rec := c.begin(record{Op: opDequeue, Name: loopQueue, ID: entries[0].ID, Score: entries[0].Score})
		c.end(rec, resultOf(q.Dequeue(context.Background(), entries[0])))
	}
}

var errFailed = errors.New("failed")

// startWorker starts a Worker, or a Pool for a name that has several queues.
func (c *client) startWorker(name string, periodic []sluice.Periodic) {
	const concurrency, grace = 8, 5 * time.Second
	qs := c.queues(name, policyOf(name))
	w := &sluice.Worker{
		Concurrency: concurrency, Lease: lease,
		Backoff:  func(int, error) time.Duration { return rand.N(100 * time.Millisecond) },
		Periodic: periodic,
	}
	w.Handler = func(ctx context.Context, e sluice.Entry) error {
		receipt := leases.ReceiptIn(ctx)
		rec := record{Op: opHandle, Name: qs.Of(e.ID).Name(), ID: e.ID,
			Version: versionOf(e.ID, string(e.Payload)),
			Score:   receipt, Delivery: receipt, Attempt: e.Attempt, Group: e.Group}
		if name == tickQueue {
			rec.Version = occurrenceOf(e.Due)
		}
		rec = c.begin(rec)
		c.at(withTask)
		if name == onceQueue {
			c.recordResult(ctx, rec)
		}
		return c.handle(ctx, rec)
	}
	run := (&sluice.Pool{Workers: qs.Workers(w), Concurrency: concurrency, Grace: grace}).Run
	if len(qs) == 1 {
		w.Queue, w.Grace, run = qs[0], grace, w.Run
	}
	c.consumers.Go(func() {
		if err := run(c.consume); err != nil {
			c.end(c.begin(record{Op: opStuck, Name: "Run on " + name}), resultOf(err))
		}
	})
}

// handle is the Workers' handler. It records what it will return before it returns.
func (c *client) handle(ctx context.Context, rec record) error {
	until := time.Now()
	switch way := rand.IntN(100); {
	case way < 3: // longer than the lease, which the Worker extends
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
	case way < 12 && rec.Name != onceQueue:
		c.end(rec, refused)
		return sluice.Permanent(errFailed)
	case way < 13:
		c.end(rec, no)
		panic("of a handler")
	case way < 21:
		rec.Delay = rand.N(100 * time.Millisecond)
		c.end(rec, again)
		return sluice.Again(rec.Delay)
	case way < 23 && rec.Name != onceQueue: // which looks for what is done
		rec.Discards = true
		c.end(rec, done)
		return sluice.Discard(errFailed)
	default:
		c.end(rec, done)
		return nil
	}
}
