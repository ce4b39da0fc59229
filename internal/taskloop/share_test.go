package taskloop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/store"
)

// team is a loop on several queues, and what its handlers saw.
type team struct {
	workers []*worker
	sizes   *Sizes
	grace   time.Duration
	stop    context.CancelFunc
	ended   chan *Unfinished

	mu       sync.Mutex // guards what follows
	wanted   int        // handlers at once
	bound    int        // the same, but for those that began when there might be more
	running  int
	tooMany  int         // handlers that began beyond the bound, or that of their queue
	of       []places    // the same, of each queue
	free     []time.Time // since when each runner has nothing to do; the first is the next that begins
	work     time.Time   // since when there are tasks for them
	mostIdle time.Duration
}

// places are how many handlers a queue may have at once.
type places struct{ wanted, bound, running int }

// newTeam returns a loop that is not running yet: a queue for each weight, which is half a millisecond away.
func newTeam(concurrency int, takes func(queue int) time.Duration, weights ...int) *team {
	m := &team{grace: time.Minute, wanted: concurrency, bound: concurrency, sizes: NewSizes(), ended: make(chan *Unfinished, 1)}
	for i, weight := range weights {
		q := newQueue(time.Minute)
		q.latency = 500 * time.Microsecond
		w := newWorker(q, 1_000_000, 0)
		w.Weight = weight
		w.handle = func(context.Context, store.Task) error {
			m.begin(i)
			defer m.end(i)
			time.Sleep(takes(i))
			return nil
		}
		m.workers = append(m.workers, w)
		m.of = append(m.of, places{wanted: w.Concurrency, bound: w.Concurrency})
	}
	return m
}

func (m *team) begin(queue int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := &m.of[queue]
	m.running++
	of.running++
	if m.running > m.bound || of.running > of.bound {
		m.tooMany++
	}
	if len(m.free) > 0 {
		m.mostIdle = max(m.mostIdle, m.idleSince(m.free[0]))
		m.free = m.free[1:]
	}
}

// idleSince returns for how long a runner had nothing to do, though there were tasks, that has been free since a time. The mutex is held.
func (m *team) idleSince(free time.Time) time.Duration {
	if m.work.After(free) {
		free = m.work
	}
	return time.Since(free)
}

func (m *team) end(queue int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := &m.of[queue]
	of.running--
	of.bound = max(of.wanted, of.running)
	m.running--
	m.free = append(m.free, time.Now())
	m.bound = max(m.wanted, m.running)
}

// set changes how many handlers there may be.
func (m *team) set(n int) {
	m.mu.Lock()
	m.wanted, m.bound = max(m.wanted, n), max(m.bound, n)
	m.mu.Unlock()
	m.sizes.Set(AllQueues, n)
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wanted, m.bound = n, max(n, m.running)
}

// setOf changes how many handlers a queue may have.
func (m *team) setOf(queue, n int) {
	of := &m.of[queue]
	m.mu.Lock()
	of.wanted, of.bound = max(of.wanted, n), max(of.bound, n)
	m.mu.Unlock()
	m.sizes.Set(queue, n)
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	of.wanted, of.bound = n, max(n, of.running)
}

// fill gives a queue more tasks than will be done.
func (m *team) fill(queue, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.hasWork() {
		m.work = time.Now()
	}
	m.workers[queue].queue.add(numbered(n)...)
}

// run starts the loop, and sees to it that it ends with the test.
func (m *team) run(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	c := Config{Concurrency: m.wanted, Grace: m.grace, Sizes: m.sizes}
	for _, w := range m.workers {
		c.Queues = append(c.Queues, w.Queue)
	}
	for range m.wanted {
		m.free = append(m.free, time.Now())
	}
	var running sync.WaitGroup
	running.Go(func() { m.ended <- Run(ctx, c) })
	t.Cleanup(func() {
		stop()
		running.Wait()
		synctest.Wait()
		for _, w := range m.workers {
			w.check(t, w)
		}
		require.Zero(t, m.tooMany, "handlers beyond the bound")
	})
}

// hasWork reports whether a task may be claimed.
func (m *team) hasWork() bool {
	return slices.ContainsFunc(m.workers, func(w *worker) bool { return w.queue.isDue() })
}

// requireBusy fails the test if a runner has idled for long, though there were tasks.
func (m *team) requireBusy(t *testing.T) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.free) > 0 && m.hasWork() {
		m.mostIdle = max(m.mostIdle, m.idleSince(m.free[0]))
	}
	require.LessOrEqual(t, m.mostIdle, 10*time.Millisecond)
}

// forgetIdle has requireBusy look at what follows only.
func (m *team) forgetIdle() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mostIdle, m.work = 0, time.Now()
}

// isDue reports whether a task may be claimed.
func (q *fakeQueue) isDue() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.hung {
		return false
	}
	for _, i := range q.items {
		if i.receipt == "" && i.buried == "" {
			return true
		}
	}
	return false
}

// done returns how many tasks of each queue were handed out.
func (m *team) done() (n []int) {
	for _, w := range m.workers {
		w.mu.Lock()
		n = append(n, len(w.handled))
		w.mu.Unlock()
	}
	return n
}

// topUp sees to it that a queue has n tasks, leased ones among them.
func (m *team) topUp(queue, n int) {
	q := m.workers[queue].queue
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.items) < n {
		q.made++
		q.items = append(q.items, &item{Task: store.Task{ID: fmt.Sprint(q.made), Payload: fmt.Append(nil, q.made)}, due: time.Now()})
	}
	q.notify()
}

func always(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }

// TestShare_FollowsTheWeights, whatever the handlers take, and also if runners are fewer than the weights.
func TestShare_FollowsTheWeights(t *testing.T) {
	fifty := make([]int, 50)
	for i := range fifty {
		fifty[i] = 1 + i%5
	}
	for _, weights := range [][]int{{6, 1}, {40, 1}, {1, 1, 1}, {6, 3, 1, 6, 3, 1}, fifty} {
		for _, takes := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 50 * time.Millisecond} {
			for _, concurrency := range []int{1, 2, 7, 64, 1000} {
				isLong := concurrency == 1000 || len(weights) == 50
				if testing.Short() && isLong || len(weights) == 50 && takes < 5*time.Millisecond && concurrency != 64 {
					continue
				}
				t.Run(fmt.Sprintf("%d queues of weight %d and so on, %v, concurrency %d", len(weights), weights[0], takes, concurrency), func(t *testing.T) {
					inBubble(t, func(t *testing.T) { requireShares(t, weights, takes, concurrency) })
				})
			}
		}
	}
}

// requireShares has a loop work on queues that always have tasks, and requires that each is done its part of them, within 5% and one
// claim, and that no runner idles once each queue has answered.
func requireShares(t *testing.T, weights []int, takes time.Duration, concurrency int) {
	m := newTeam(concurrency, always(takes), weights...)
	total, least := 0, slices.Min(weights)
	for _, weight := range weights {
		total += weight
	}
	turn := max(int(quantum/max(takes, leastCost)), 1)
	const latency = 200 * time.Microsecond
	enough := max(8*turn*total/least, 20*total/least, 20*concurrency)
	for _, w := range m.workers {
		w.queue.latency = latency
	}
	m.run(t)
	all, done := 0, []int(nil)
	for begun := false; all < enough; {
		for i := range weights {
			m.topUp(i, 3*concurrency+3*turn)
		}
		time.Sleep(max(takes, latency))
		synctest.Wait()
		done, all = m.done(), 0
		for _, n := range done {
			all += n
		}
		if !begun && slices.Min(done) > 0 {
			begun = true
			m.forgetIdle()
		}
	}
	for i, n := range done {
		part := float64(weights[i]) / float64(total)
		want, claim := float64(all)*part, max(float64(turn), float64(concurrency)*part)
		require.InDelta(t, want, n, want/20+claim, "queue %d of %v: %v", i, weights, done)
	}
	m.requireBusy(t)
	m.stop()
}

// TestShare_IsOfRunnersWhereHandlersDiffer: one queue's handlers take a thousand times as long as the other's, and do not get more of the
// runners than their weight says.
func TestShare_IsOfRunnersWhereHandlersDiffer(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newTeam(20, func(queue int) time.Duration {
			if queue == 0 {
				return 20 * time.Second
			}
			return 20 * time.Millisecond
		}, 1, 3)
		m.fill(0, 200)
		m.fill(1, 6000)
		m.run(t)
		time.Sleep(5 * time.Second)
		done := m.done()
		require.LessOrEqual(t, done[0], 6, "five runners are its share")
		require.GreaterOrEqual(t, done[1], 13*5*50*9/10)
		m.requireBusy(t)
		m.stop()
	})
}

// TestShare_WhatOneDoesNotUseTheOthersHave, and one that had no tasks gets the next runner.
func TestShare_WhatOneDoesNotUseTheOthersHave(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newTeam(10, always(100*time.Millisecond), 1, 9, 1)
		m.fill(0, 2000)
		m.run(t)
		time.Sleep(3*time.Second + 37*time.Millisecond)
		require.InDelta(t, 300, m.done()[0], 20, "it has all runners")
		m.fill(2, 1)
		time.Sleep(101 * time.Millisecond)
		require.Equal(t, 1, m.done()[2], "it has waited for no more than a handler")
		m.fill(1, 500)
		before := m.done()
		time.Sleep(time.Second)
		now := m.done()
		require.InDelta(t, 80, now[1]-before[1], 15)
		require.InDelta(t, 10, now[0]-before[0], 7, "weight 1 is not starved")
		m.requireBusy(t)
		m.stop()
	})
}

// TestShare_NoRunnerIdlesWhileWorkComesAndGoes, in any queue and number.
func TestShare_NoRunnerIdlesWhileWorkComesAndGoes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var mu sync.Mutex
		draw := func(n int) int {
			mu.Lock()
			defer mu.Unlock()
			return rand.IntN(n)
		}
		m := newTeam(16, func(queue int) time.Duration { return time.Duration(draw(30*queue+2)) * time.Millisecond }, 6, 3, 1, 6, 3, 1)
		m.run(t)
		for range 400 {
			m.fill(draw(6), draw(40))
			time.Sleep(time.Duration(draw(60)) * time.Millisecond)
		}
		m.requireBusy(t)
		time.Sleep(time.Minute)
		require.False(t, m.hasWork())
		m.stop()
	})
}

// TestShare_ManyAreServedInTurn: with more queues than runners, none waits for longer than the others' turns, whatever its weight.
func TestShare_ManyAreServedInTurn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		weights := make([]int, 51)
		for i := range weights {
			weights[i] = 1
		}
		m := newTeam(10, always(time.Second), weights...)
		for i := range 50 {
			m.fill(i, 100)
		}
		m.run(t)
		time.Sleep(61*time.Second + 500*time.Millisecond)
		for i, n := range m.done()[:50] {
			require.GreaterOrEqual(t, n, 11, i)
			require.LessOrEqual(t, n, 14, i)
		}
		m.fill(50, 100)
		time.Sleep(time.Second)
		require.Equal(t, 1, m.done()[50], "one that had no tasks has not waited for the others' turns")
		time.Sleep(10 * time.Second)
		require.LessOrEqual(t, m.done()[50], 4, "and has no more than they")
		m.stop()
	})
}

// TestShare_AHungServerKeepsNoRunners: the others have them all, soon.
func TestShare_AHungServerKeepsNoRunners(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newTeam(10, always(50*time.Millisecond), 1, 1, 1)
		for i := range m.workers {
			m.fill(i, 2_500)
		}
		m.run(t)
		time.Sleep(time.Second)
		m.workers[0].queue.set(func() { m.workers[0].queue.hung = true })
		time.Sleep(time.Second)
		before := m.done()
		time.Sleep(5 * time.Second)
		now := m.done()
		require.Equal(t, before[0], now[0])
		require.GreaterOrEqual(t, now[1]-before[1]+now[2]-before[2], 10*20*5*9/10, "of what ten runners can do")
		m.workers[0].queue.set(func() { m.workers[0].queue.hung = false })
		time.Sleep(10 * time.Second)
		require.Greater(t, m.done()[0], now[0]+100)
		m.stop()
	})
}

// TestShare_ClaimsStayInGroups if handlers are quick: as with one queue.
func TestShare_ClaimsStayInGroups(t *testing.T) {
	for _, queues := range []int{6, 50} {
		t.Run(fmt.Sprint(queues), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				weights := make([]int, queues)
				for i := range weights {
					weights[i] = 1
				}
				m := newTeam(64, always(0), weights...)
				for i := range weights {
					m.fill(i, 24_000/queues)
				}
				m.run(t)
				time.Sleep(300 * time.Millisecond)
				exchanges, tasks := 0, 0
				for _, w := range m.workers {
					sent, _ := w.queue.sent()
					exchanges += len(sent)
					require.LessOrEqual(t, w.queue.atOnce(), 2)
				}
				for _, n := range m.done() {
					tasks += n
				}
				require.GreaterOrEqual(t, tasks, 10_000)
				require.GreaterOrEqual(t, float64(tasks)/float64(exchanges), 10.0, "%d tasks, %d exchanges", tasks, exchanges)
				m.stop()
			})
		})
	}
}

// TestShare_OneThatHadNoTasksHasTheNextRunner, though another one has a backlog for all of them, whatever the weights are.
func TestShare_OneThatHadNoTasksHasTheNextRunner(t *testing.T) {
	for _, test := range []struct{ concurrency, weight int }{{1, 1}, {1, 1000}, {8, 1}, {8, 10}, {8, 1000}, {16, 100}} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				var n atomic.Int64
				m := newTeam(test.concurrency, func(int) time.Duration { return time.Second + time.Duration(n.Add(1)%7)*30*time.Millisecond }, test.weight, 1)
				m.fill(0, 1000)
				m.run(t)
				time.Sleep(10 * time.Second)
				for k := range 5 {
					m.workers[1].queue.add(fmt.Sprint("late", k))
					time.Sleep(1300 * time.Millisecond) // longer than a handler takes
					require.Equal(t, k+1, m.done()[1])
					time.Sleep(2 * time.Second)
				}
				m.stop()
			})
		})
	}
}

// TestShare_WhatAQueueCannotUseTheOthersShare: its weight is large, and it hangs, has no more tasks, or may have few runners.
func TestShare_WhatAQueueCannotUseTheOthersShare(t *testing.T) {
	for name, prepare := range map[string]func(m *team){
		"hangs": func(m *team) {
			m.workers[0].queue.hung = true
			m.fill(0, 100)
		},
		"has one long task": func(m *team) { m.fill(0, 1) },
		"may have one": func(m *team) {
			m.workers[0].Concurrency = 1
			m.fill(0, 10)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				m := newTeam(100, func(queue int) time.Duration {
					if queue == 0 {
						return 10 * time.Second
					}
					return 50 * time.Millisecond
				}, 1000, 1, 1)
				prepare(m)
				m.fill(1, 4_000)
				m.fill(2, 4_000)
				m.run(t)
				time.Sleep(time.Second)
				before := m.done()
				time.Sleep(2 * time.Second)
				now := m.done()
				for i := range 2 {
					require.InDelta(t, 2_000, now[i+1]-before[i+1], 200, i)
				}
				m.stop()
				time.Sleep(time.Minute)
			})
		})
	}
}

// TestShare_AFarServerHoldsBackNoNearOne that is reached by another client.
func TestShare_AFarServerHoldsBackNoNearOne(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newTeam(64, always(50*time.Millisecond), 1, 1, 1, 1)
		for i, w := range m.workers {
			if w.Client = "far"; i == 0 {
				w.Client = "near"
			} else {
				w.queue.latency = 50 * time.Millisecond
			}
			m.fill(i, 4_000)
		}
		m.run(t)
		time.Sleep(time.Second)
		before := m.done()[0]
		time.Sleep(2 * time.Second)
		require.GreaterOrEqual(t, m.done()[0]-before, 2*16*20*9/10, "its share")
		m.stop()
	})
}
