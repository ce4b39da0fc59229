package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
)

// groupNames are the groups of each queue. Some have what stands elsewhere between parts.
var groupNames = []string{"wallet:7", "@3:a::5", "*2,1:x", "w", "wallet:70"}

// group returns the group of a task with this ID: mostly the same each time, since a task of that
// ID in another one is refused; "" for none, as in most cases.
func (c *client) group(rng *rand.Rand, id string) string {
	n, err := strconv.Atoi(strings.TrimPrefix(id, "shared-"))
	if other := rng.IntN(30) == 0; err != nil || other { // no other client has it, or it is refused
		n = rng.IntN(6 * len(groupNames))
	}
	if c.Calm != 0 || n >= 3*len(groupNames) || n%3 == 0 {
		return ""
	}
	return groupNames[n/3]
}

// mayHoldUp says whether a stranger may finish a task of a group, which holds up the group until a
// Worker of the queue tells that it lives.
func (c *client) mayHoldUp(rng *rand.Rand, queue string) bool {
	return hasWorkers(queue) && rng.IntN(8) == 0 && c.produce.Err() == nil
}

// groupOnce is group of a task that is enqueued once, the same for each of its ID.
func (c *client) groupOnce(id string) string {
	if n := int(id[len(id)-1] - '4'); c.Calm == 0 && n >= 0 && n < 3 { // see takeOnce
		return groupNames[n]
	}
	return ""
}

// groupsOf returns the key that has the groups of a queue.
func groupsOf(queue string) string { return "{Queue:" + queue + "}:groups" }

// sweepAfter is after how long, again and again, groups are seen to that hold up the end.
const sweepAfter = 5 * time.Second

// sweepGroups runs a Worker on each queue, which is paused, so that the Worker claims nothing: it
// sees to groups in which a task is in play that a stranger has finished. Some queues have no
// Worker that does.
func (r *round) sweepGroups() error {
	var all sync.WaitGroup
	errs := make([]error, len(drained))
	for i, name := range drained {
		all.Go(func() { errs[i] = r.sweepGroupsOf(name) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// sweepGroupsOf is sweepGroups of one queue.
func (r *round) sweepGroupsOf(name string) error {
	q, err := sluice.NewQueue(r.server.rdb, name)
	if err == nil {
		err = q.Pause(context.Background(), calmLimit)
	}
	if err == nil {
		ctx, end := context.WithTimeout(context.Background(), 1500*time.Millisecond) // after a second it says that it lives
		defer end()
		err = (&sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error { return errFailed }}).Run(ctx)
	}
	if err == nil {
		err = q.Resume(context.Background())
	}
	if err != nil {
		return fmt.Errorf("to sweep the groups of %s: %w", name, err)
	}
	return nil
}
