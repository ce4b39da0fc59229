package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
)

// itemsForSale are what each queue sells. One name has what stands elsewhere between parts.
var itemsForSale = []string{"pear", "a:1,2:$"}

// take returns what a task takes: mostly nothing.
func (c *client) take(rng *rand.Rand) (t sluice.Take) {
	if c.Calm == 0 && rng.IntN(4) == 0 {
		t = sluice.Take{Item: itemsForSale[rng.IntN(2)], Units: rng.IntN(4), Restore: rng.IntN(30) == 0}
	}
	return t
}

// takeOnce is take of a task that is enqueued once, the same for each of its ID.
func (c *client) takeOnce(id string) (t sluice.Take) {
	if n := id[len(id)-1] - '0'; c.Calm == 0 && n < 4 {
		t = sluice.Take{Item: itemsForSale[n%2], Units: 1 + int(n/2)}
	}
	return t
}

// recorded returns a take as records have it: with its units.
func recorded(t sluice.Take) sluice.Take {
	if t.Item != "" {
		t.Units = cmp.Or(t.Units, 1)
	}
	return t
}

// drainedQueue returns a handle of one of the queues that are drained.
func (c *client) drainedQueue(name string) *sluice.Queue {
	if i := slices.Index(manyNames, name); i >= 0 {
		return c.queues(manyQueues, sluice.DuplicatesReplace)[i]
	}
	return c.queue(name, policyOf(name))
}

// trade gives an item another total, mostly so that a few are left, and drops dead letters.
func (c *client) trade(rng *rand.Rand) {
	work(rng, 80*time.Millisecond)
	ctx, cancel := withShortContext(context.Background(), rng, 12)
	defer cancel()
	name, item := drained[rng.IntN(len(drained))], itemsForSale[rng.IntN(2)]
	q := c.drainedQueue(name)
	switch way := rng.IntN(30); {
	case way == 0:
		rec := c.begin(record{Op: opEndSale, Name: name, Take: sluice.Take{Item: item}, Total: noSale})
		c.endBy(ctx, rec, resultOf(q.DeleteStock(ctx, item)))
	case way < 5:
		dead, err := q.List(ctx, sluice.StateDead, sluice.TaskInfo{}, 5)
		if err != nil || len(dead) == 0 {
			return
		}
		rec := c.begin(record{Op: opDrop, Name: name, ID: dead[0].ID})
		n, err := q.Drop(ctx, dead[0].ID)
		c.endBy(ctx, rec, resultOfCall(n == 1, err))
	default:
		info, err := q.Stock(ctx, item)
		if err != nil && !errors.Is(err, sluice.ErrNotFound) {
			return
		}
		rec := record{Op: opSetStock, Name: name, Take: sluice.Take{Item: item}}
		rec.Total = max(0, info.Held+info.Sold+int64(rng.IntN(12)-3))
		rec = c.begin(rec)
		c.endBy(ctx, rec, resultOf(q.SetStock(ctx, item, rec.Total)))
	}
}

// stranger finishes tasks that it has not claimed, by handles that do not know that tasks hold
// units, or are in groups.
func (c *client) stranger() {
	rng := c.rng()
	for c.consume.Err() == nil {
		work(rng, 200*time.Millisecond)
		name := drained[rng.IntN(len(drained))]
		if name == onceQueue || name == popQueue { // what is finished is remembered there; is popped
			continue
		}
		q, err := sluice.NewQueue(c.rdb, name)
		other, otherErr := sluice.NewQueue(c.rdb, name)
		if err := cmp.Or(err, otherErr); err != nil {
			panic(err)
		}
		entries, err := other.Peek(c.consume, 5)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.Take.Units == 0 && (e.Group == "" || !c.mayHoldUp(rng, name)) {
				continue
			}
			rec := c.begin(record{Op: opDequeue, Name: name, ID: e.ID, Score: e.Score, Stranger: true})
			c.end(rec, resultOf(q.Dequeue(context.Background(), sluice.Entry{ID: e.ID, Score: e.Score}))) // which says nothing of units or a group
		}
	}
}

// readStocks runs a Worker on each queue, which sees to what is left of tasks that are no more,
// and reads through the library what there is of each item when everything is quiet.
func (r *round) readStocks() error {
	if r.liveness {
		return nil
	}
	r.stocks = map[stockKey]listedStock{}
	var all sync.WaitGroup
	errs := make([]error, len(drained))
	found := make([]map[stockKey]listedStock, len(drained))
	for i, name := range drained {
		all.Go(func() { found[i], errs[i] = r.stocksOf(name) })
	}
	all.Wait()
	for _, some := range found {
		for key, s := range some {
			r.stocks[key] = s
		}
	}
	return errors.Join(errs...)
}

// stocksOf is readStocks of one queue.
func (r *round) stocksOf(name string) (map[stockKey]listedStock, error) {
	q, err := sluice.NewQueue(r.server.rdb, name)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithTimeout(context.Background(), 1500*time.Millisecond) // after a second it says that it lives
	defer end()
	err = (&sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error { return errFailed }}).Run(ctx)
	if err != nil {
		return nil, fmt.Errorf("to sweep %s: %w", name, err)
	}
	stocks, err := q.Stocks(context.Background())
	if err != nil {
		return nil, fmt.Errorf("the stocks of %s: %w", name, err)
	}
	listed := map[stockKey]listedStock{}
	for item, info := range stocks {
		listed[stockKey{name, item}] = listedStock{StockInfo: info}
	}
	for t, err := range q.All(context.Background(), sluice.StateDead) {
		if err != nil {
			return nil, fmt.Errorf("what is dead in %s: %w", name, err)
		}
		if key := (stockKey{name, t.Take.Item}); t.Take.Units > 0 {
			s := listed[key]
			s.letters += int64(t.Take.Units)
			listed[key] = s
		}
	}
	return listed, nil
}
