package main

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"github.com/sluice-go/sluice"
)

// pause pauses a queue for a moment, and mostly ends the pause itself. Otherwise it runs out.
func (c *client) pause(ctx context.Context, rng *rand.Rand, name string, q *sluice.Queue) {
	rec := c.begin(record{Op: opPause, Name: name})
	c.endBy(ctx, rec, resultOf(q.Pause(ctx, time.Millisecond+upTo(rng, 150*time.Millisecond))))
	work(rng, 60*time.Millisecond)
	if rng.IntN(3) > 0 {
		_ = q.Resume(context.Background())
	}
}

// list reads the tasks of a state, in pages or in one loop. However they come and go, each stands
// behind the one before.
func (c *client) list(ctx context.Context, rng *rand.Rand, name string, q *sluice.Queue) {
	state := []sluice.State{sluice.StateScheduled, sluice.StateDue, sluice.StateLeased, sluice.StateDead, sluice.StateDone}[rng.IntN(5)]
	rec := c.begin(record{Op: opList, Name: name})
	var after sluice.TaskInfo
	isBehind := func(t sluice.TaskInfo) bool {
		apart := cmp.Or(cmp.Compare(t.Score, after.Score), t.LeaseEnds.Compare(after.LeaseEnds), cmp.Compare(t.ID, after.ID))
		isFirst := after.ID == ""
		after = t
		return t.State == state && (apart > 0 || isFirst)
	}
	if rng.IntN(2) == 0 {
		for t, err := range q.All(ctx, state) {
			if err != nil {
				c.endBy(ctx, rec, resultOf(err))
				return
			}
			if state == sluice.StateDue && t.Attempt == 0 {
				continue // it may wait behind a lease that has run out, and stands where that did
			}
			if !isBehind(t) {
				c.end(rec, outOfOrder)
				return
			}
		}
		c.endBy(ctx, rec, done)
		return
	}
	for {
		page, err := q.List(ctx, state, after, 20)
		for _, t := range page {
			if !isBehind(t) {
				c.end(rec, outOfOrder)
				return
			}
		}
		if err != nil || len(page) < 20 {
			c.endBy(ctx, rec, resultOf(err))
			return
		}
	}
}
