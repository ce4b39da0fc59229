package taskloop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/store"
)

// crowd is what runs in a team of which some handlers are stuck.
type crowd struct {
	*team
	limit   time.Duration // those that run for as long are stuck
	largest int           // that the number of places has been
	members map[*member]bool
}

// member is a handler that runs.
type member struct {
	queue int
	began time.Time
}

// enter notes that a handler was called, and that there was no place for it if so.
func (c *crowd) enter(queue int) *member {
	c.mu.Lock()
	defer c.mu.Unlock()
	stuck, of := 0, 0
	for other := range c.members {
		if time.Since(other.began) >= c.limit {
			stuck++
		} else if other.queue == queue {
			of++
		}
	}
	if len(c.members)-min(stuck, c.largest) >= c.wanted || of >= c.of[queue].wanted {
		c.tooMany++
	}
	m := &member{queue, time.Now()}
	c.members[m] = true
	return m
}

func (c *crowd) leave(m *member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.members, m)
}

// TestStuck_Walk is TestShare_Walk with handlers that are stuck. Those that are not are never more
// than there are places, no more stuck ones are replaced than that, no place is lost, and each task
// is done.
func TestStuck_Walk(t *testing.T) {
	for range 10 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T) { stuckWalk(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func stuckWalk(t *testing.T, r *rand.Rand) {
	var mu sync.Mutex
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return r.IntN(n)
	}
	weights := make([]int, 1+draw(5))
	for i := range weights {
		weights[i] = 1 + draw(10)
	}
	c := &crowd{team: newTeam(1+draw(20), nil, weights...), limit: 150 * time.Millisecond, members: map[*member]bool{}}
	c.largest, c.grace = c.wanted, 50*time.Millisecond
	forever := make(chan struct{})
	release := make(chan struct{})
	for i, w := range c.workers {
		w.queue.lease, w.Lease, w.Timeout = 2*time.Second, 2*time.Second, 100*time.Millisecond
		w.decide = func(store.Task, error, error) store.Disposition { return store.Disposition{Action: store.Finish} }
		w.handle = func(context.Context, store.Task) error {
			m := c.enter(i)
			defer c.leave(m)
			select {
			case <-forever:
				<-release
				return nil
			default:
			}
			if time.Sleep(time.Duration(draw(100)) * time.Millisecond); draw(5) == 0 {
				time.Sleep(time.Duration(draw(2000)) * time.Millisecond)
			}
			if draw(20) == 0 {
				runtime.Goexit()
			}
			return nil
		}
	}
	c.run(t)
	added := make([]int, len(weights))
	for range 200 {
		i := draw(len(weights))
		q := c.workers[i].queue
		switch draw(8) {
		case 0, 1, 2:
			for n := draw(40); n > 0; n-- {
				added[i]++
				q.add(fmt.Sprint("t", added[i]))
			}
		case 3:
			q.set(func() { q.hung = !q.hung && draw(3) == 0 })
		case 4:
			n := 1 + draw(20)
			c.mu.Lock()
			c.largest = max(c.largest, n)
			c.mu.Unlock()
			c.set(n)
		case 5:
			c.setOf(i, 1+draw(20))
		default:
			time.Sleep(time.Duration(draw(200)) * time.Millisecond)
		}
	}
	for _, w := range c.workers {
		w.queue.set(func() { w.queue.hung = false })
	}
	time.Sleep(10 * time.Minute)
	stuck := int64(0)
	for i, w := range c.workers {
		require.Empty(t, w.queue.left(), "queue %d of %d", i, len(weights))
		require.Zero(t, w.Counters.Stuck.Load())
		stuck += w.Counters.Ended[Lost].Load()
	}
	require.Positive(t, stuck)
	// As many as may run do, and as many are stuck beside them.
	c.set(7)
	for i := range weights {
		c.setOf(i, 100)
	}
	close(forever)
	for i := range c.workers {
		c.fill(i, 20)
	}
	time.Sleep(time.Minute)
	c.mu.Lock()
	require.Len(t, c.members, 2*7)
	c.mu.Unlock()
	close(release)
	time.Sleep(time.Minute)
	c.stop()
	time.Sleep(2 * time.Minute)
}
