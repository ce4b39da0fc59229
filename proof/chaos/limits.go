package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluice-go/sluice"
)

// limitedQueues have limits now and then.
var limitedQueues = []string{loopQueue, workQueue, popQueue}

// setLimits gives a queue other limits, or none. A Per is short, so that the limits are there for
// many of them.
func (c *client) setLimits(ctx context.Context, rng *rand.Rand) {
	name := limitedQueues[rng.IntN(len(limitedQueues))]
	l := sluice.Limits{}
	if rng.IntN(3) > 0 {
		l = sluice.Limits{Rate: 1 + rng.IntN(30), Per: time.Duration(50+rng.IntN(200)) * time.Millisecond, Burst: 1 + rng.IntN(8)}
	}
	if rng.IntN(3) > 0 {
		l.Running = 1 + rng.IntN(12)
	}
	if rng.IntN(2) == 0 {
		l.PerGroup = 1 + rng.IntN(3)
	}
	rec := c.begin(record{Op: opSetLimits, Name: name, Limits: l})
	c.endBy(ctx, rec, resultOf(c.queue(name, sluice.DuplicatesReplace).SetLimits(ctx, l)))
}

// clearLimits takes all limits away, so that the queues can be drained.
func (r *round) clearLimits() error {
	r.cleared = monotonic()
	for _, name := range limitedQueues {
		q, err := sluice.NewQueue(r.server.rdb, name)
		if err == nil {
			err = q.SetLimits(context.Background(), sluice.Limits{})
		}
		if err != nil {
			return fmt.Errorf("to clear the limits of %s: %w", name, err)
		}
	}
	return nil
}
