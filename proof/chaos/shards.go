package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// Queues called "parts" are moved to other numbers of shards while they are used. Their names change every few seconds,
// so that the loss of data spoils the check of a few only: Reshard promises nothing then. Each task has an ID of its own.
const (
	partsLife  = 2 * time.Second
	mostShards = 3
)

func partsName(n time.Duration) string { return fmt.Sprintf("parts%d", n) }

// isParts says whether a queue, or a key's queue with what follows its name, is one of these.
func isParts(queue string) bool { return strings.HasPrefix(queue, "parts") }

// partsNow returns the number of the present queue.
func (c *client) partsNow() time.Duration { return (monotonic() - c.Began) / partsLife }

// parts is a queue that is thought to have a number of shards.
type parts struct {
	*sluice.Queue
	name   string
	shards int
}

// parts returns a queue, the same one each time.
func (c *client) parts(name string) *parts { return c.partsOf(name, 1+len(c.Process)%mostShards) }

func (c *client) partsOf(name string, shards int) *parts {
	if p, ok := c.handles.Load(name); ok {
		return p.(*parts)
	}
	q, err := sluice.NewQueue(c.rdb, name, sluice.WithShards(shards), sluice.WithMaxAttempts(1000), sluice.WithPollInterval(200*time.Millisecond))
	if err != nil {
		panic(err)
	}
	first, _ := c.handles.LoadOrStore(name, &parts{q, name, shards})
	return first.(*parts)
}

// checked takes an operation's error. If the queue has another number of shards than the process was started with, it
// is started again with the next one.
func (c *client) checked(p *parts, err error) error {
	if errors.Is(err, sluice.ErrInvalid) && c.handles.CompareAndDelete(p.name, p) {
		c.partsOf(p.name, p.shards%mostShards+1)
	}
	return err
}

// produceParts enqueues a task, and sometimes cancels it.
func (c *client) produceParts(rng *rand.Rand) {
	work(rng, 40*time.Millisecond)
	p := c.parts(partsName(c.partsNow()))
	version := fmt.Sprintf("%s/%d", c.Process, c.seq.Add(1))
	task := sluice.Task{ID: version, Payload: []byte(version + " "), Delay: upTo(rng, 400*time.Millisecond)}
	ctx, cancel := withShortContext(context.Background(), rng, 12)
	defer cancel()
	rec := c.begin(record{Op: opEnqueue, Name: p.name, ID: version, Version: version, Delay: task.Delay})
	outcome, err := p.Enqueue(ctx, task)
	rec.Outcome = int(outcome)
	c.endBy(ctx, rec, resultOf(c.checked(p, err)))
	if rng.IntN(20) == 0 {
		work(rng, 200*time.Millisecond)
		rec := c.begin(record{Op: opCancelPart, Name: p.name, ID: version})
		was, err := p.Cancel(ctx, version)
		c.endBy(ctx, rec, resultOfCall(was != sluice.Absent, c.checked(p, err)))
	}
}

// reshard moves the present queue, or the one before, to another number of shards.
func (c *client) reshard(rng *rand.Rand) {
	work(rng, 2*time.Second)
	p := c.parts(partsName(max(0, c.partsNow()-time.Duration(rng.IntN(2)))))
	ctx, cancel := withShortContext(c.produce, rng, 3)
	defer cancel()
	rec := c.begin(record{Op: opReshard, Name: p.name})
	c.endBy(ctx, rec, resultOf(c.checked(p, p.Reshard(ctx, 1+rng.IntN(mostShards), nil))))
}

// consumeParts claims tasks of the present queue, and of those before, and settles them.
func (c *client) consumeParts() {
	rng := c.rng()
	for c.consume.Err() == nil {
		number := c.partsNow()
		if rng.IntN(2) == 0 {
			number = time.Duration(rng.Int64N(int64(number) + 1))
		}
		p := c.parts(partsName(number))
		ctx, cancel := withShortContext(c.consume, rng, 30)
		call := monotonic()
		entries, err := p.Claim(ctx, 1+rng.IntN(6), lease)
		cancel()
		got := c.delivered(opPart, p.name, call, entries)
		if c.checked(p, err) != nil || len(entries) == 0 {
			work(rng, 10*time.Millisecond)
		}
		for i, e := range entries {
			c.settlePart(rng, p, got[i], e)
		}
	}
}

func (c *client) settlePart(rng *rand.Rand, p *parts, got record, e sluice.Entry) {
	work(rng, 4*time.Millisecond)
	ctx, cancel := withShortContext(context.Background(), rng, 30)
	defer cancel()
	switch way := rng.IntN(100); {
	case way < 6:
		rec := c.begin(about(opRetryPart, got, e))
		c.endBy(ctx, rec, resultOf(p.Retry(ctx, e, upTo(rng, 100*time.Millisecond))))
	case way < 10:
		rec := c.begin(about(opRetryPart, got, e))
		c.endBy(ctx, rec, resultOf(p.Release(ctx, e)))
	case way < 13: // not settled
	default:
		rec := c.begin(about(opDequeuePart, got, e))
		c.endBy(ctx, rec, resultOf(p.Dequeue(ctx, e)))
	}
}

// finalParts ends what was begun by a Reshard that did not return, or by a client that was killed.
func (c *client) finalParts() {
	rng := c.rng()
	for n := range c.partsNow() + 1 {
		rec := c.begin(record{Op: opFinalPart, Name: partsName(n)})
		ctx, cancel := context.WithTimeout(context.Background(), calmLimit)
		err := sluice.ErrInvalid // it is being moved to another number, or has another one
		for try := 0; errors.Is(err, sluice.ErrInvalid) && ctx.Err() == nil; try++ {
			p := c.parts(rec.Name)
			err = c.checked(p, p.Reshard(ctx, 1+try/mostShards%mostShards, nil))
			if try >= mostShards*mostShards {
				work(rng, 20*time.Millisecond) // the others do the same
			}
		}
		cancel()
		c.end(rec, resultOf(err))
	}
}

// awaitParts waits until the clients have claimed what there is in these queues, and nothing changes any more.
func (r *round) awaitParts() {
	for left, last, since := -1, -1, time.Now(); left != 0 && time.Since(since) < 4*lease; time.Sleep(50 * time.Millisecond) { // the clients still work
		if left = r.countParts(); left != last {
			last, since = left, time.Now()
		}
	}
}

// countParts returns how many tasks there are, also on their way.
func (r *round) countParts() (n int) {
	ctx := context.Background()
	for _, pattern := range []string{"Queue:parts*", "{Queue:parts*}:move:left", "{Queue:parts*}:move:transit"} {
		keys := r.server.rdb.ScanType(ctx, 0, pattern, 10_000, "zset").Iterator()
		for keys.Next(ctx) {
			n += int(r.server.rdb.ZCard(ctx, keys.Val()).Val())
		}
	}
	return n
}
