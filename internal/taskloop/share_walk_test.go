package taskloop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/store"
)

// TestShare_UsesFewConnections, however many queues there are: few exchanges and extensions are
// under way at once, also where the server is far.
func TestShare_UsesFewConnections(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const queues, latency = 50, 5 * time.Millisecond
		weights := make([]int, queues)
		for i := range weights {
			weights[i] = 1
		}
		var long atomic.Bool
		m := newTeam(64, func(int) time.Duration {
			if long.Load() {
				return 12 * time.Second
			}
			return 30 * time.Millisecond
		}, weights...)
		for i, w := range m.workers {
			w.queue.latency, w.queue.lease, w.Lease = latency, 30*time.Second, 30*time.Second
			m.fill(i, 40)
		}
		atOnce := func(sent func(*fakeQueue) []exchanged, since time.Time) (most int) {
			var at []time.Time
			for _, w := range m.workers {
				for _, x := range sent(w.queue) {
					if x.at.After(since) {
						at = append(at, x.at)
					}
				}
			}
			slices.SortFunc(at, time.Time.Compare)
			for i, j := 0, 0; j < len(at); j++ {
				for at[j].Sub(at[i]) >= latency {
					i++
				}
				most = max(most, j-i+1)
			}
			return most
		}
		m.run(t)
		time.Sleep(time.Second)
		require.LessOrEqual(t, atOnce(func(q *fakeQueue) []exchanged { x, _ := q.sent(); return x }, time.Now().Add(-time.Second/2)), 3)
		time.Sleep(time.Minute)
		long.Store(true)
		for i := range m.workers {
			m.fill(i, 1)
		}
		time.Sleep(11 * time.Second)
		_, extended := m.workers[0].queue.sent()
		require.NotEmpty(t, extended)
		require.LessOrEqual(t, atOnce(func(q *fakeQueue) []exchanged { _, x := q.sent(); return x }, time.Time{}), 10)
		m.stop()
	})
}

// TestShare_IdleQueuesAreWatchedOn while a busy one has all runners now and then.
func TestShare_IdleQueuesAreWatchedOn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newTeam(4, always(3*time.Millisecond), 1, 1, 1)
		m.fill(0, 2_000)
		m.run(t)
		time.Sleep(time.Second)
		for _, w := range m.workers[1:] {
			w.queue.set(func() { require.LessOrEqual(t, w.queue.waits, 2) })
		}
		m.stop()
	})
}

// TestShare_Walk: queues fill and empty, hang and go on, handlers take any time or exit their
// goroutines, and the numbers of handlers change. There are never too many handlers, never more
// tasks are leased than there are places, no runner is lost, and each task is done.
func TestShare_Walk(t *testing.T) {
	for range 15 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T) { walk(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func walk(t *testing.T, r *rand.Rand) {
	weights := make([]int, 1+r.IntN(8))
	for i := range weights {
		weights[i] = 1 + r.IntN(10)
	}
	var mu sync.Mutex
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return r.IntN(n)
	}
	m := newTeam(1+r.IntN(40), nil, weights...)
	added, forever := make([]int, len(weights)), false
	for i, w := range m.workers {
		w.decide = func(_ store.Task, err error, _ error) store.Disposition {
			return store.Disposition{Action: store.Finish}
		}
		w.handle = func(ctx context.Context, _ store.Task) error {
			m.begin(i)
			defer m.end(i)
			if forever {
				sleep(ctx, time.Hour)
				return nil
			}
			time.Sleep(time.Duration(draw(3)*draw(200)) * time.Millisecond)
			if draw(20) == 0 {
				runtime.Goexit()
			}
			return nil
		}
	}
	m.run(t)
	for range 200 {
		i := draw(len(weights))
		q := m.workers[i].queue
		switch draw(8) {
		case 0, 1, 2:
			for n := draw(60); n > 0; n-- {
				added[i]++
				q.add(fmt.Sprint("t", added[i]))
			}
		case 3:
			q.set(func() { q.hung = !q.hung && draw(3) == 0 })
		case 4:
			m.set(1 + draw(40))
		case 5:
			m.setOf(i, 1+draw(40))
		default:
			time.Sleep(time.Duration(draw(100)) * time.Millisecond)
		}
	}
	for _, w := range m.workers {
		w.queue.set(func() { w.queue.hung = false })
	}
	time.Sleep(10 * time.Minute)
	for i, w := range m.workers {
		require.Empty(t, w.queue.left(), "queue %d of %d", i, len(weights))
	}
	// As many as may run, do.
	m.set(7)
	for i := range weights {
		m.setOf(i, 100)
	}
	forever = true
	for i := range m.workers {
		m.fill(i, 10)
	}
	time.Sleep(time.Minute)
	m.mu.Lock()
	require.Equal(t, 7, m.running)
	m.mu.Unlock()
	m.stop()
	time.Sleep(2 * time.Minute)
}
