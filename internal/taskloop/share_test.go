package taskloop

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestShare_FollowsTheWeights, whatever the handlers take, and also if runners are fewer than the
// weights.
func TestShare_FollowsTheWeights(t *testing.T) {
	compareShares(t, [][]int{{6, 1}, {6, 3, 1, 6, 3, 1}}, 1, 7, 64)
	if !testing.Short() { // so many show little of their own, and take most of the time
		compareShares(t, [][]int{{6, 1}}, 1000)
	}
}

func compareShares(t *testing.T, all [][]int, concurrencies ...int) {
	for _, weights := range all {
		for _, takes := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 50 * time.Millisecond} {
			for _, concurrency := range concurrencies {
				t.Run(fmt.Sprintf("%d queues of weight %d and so on, %v, concurrency %d", len(weights), weights[0], takes, concurrency), func(t *testing.T) {
					inBubble(t, func(t *testing.T) { requireShares(t, weights, takes, concurrency) })
				})
			}
		}
	}
}

// requireShares has a loop work on queues that always have tasks, and requires that each is done
// its part of them, within 5% and one claim, and that no runner idles once each queue has answered.
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

// TestShare_IsOfRunnersWhereHandlersDiffer: one queue's handlers take a thousand times as long as
// the other's, and do not get more of the runners than their weight says.
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

// TestShare_ManyAreServedInTurn: with more queues than runners, none waits for longer than the
// others' turns, whatever its weight.
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

// TestShare_OneThatHadNoTasksHasTheNextRunner, though another one has a backlog for all of them,
// whatever the weights are.
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

// TestShare_WhatAQueueCannotUseTheOthersShare: its weight is large, and it hangs, has no more
// tasks, or may have few runners.
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

// TestShare_WhatOneHadAloneItDoesNotOwe: it had all runners while no other queue had work, or could
// be asked. From then on each has its share, and none is kept waiting to make up for it.
func TestShare_WhatOneHadAloneItDoesNotOwe(t *testing.T) {
	for name, test := range map[string]struct {
		takes time.Duration
		begin func(q *fakeQueue, late time.Duration)
	}{
		"had no work": {time.Second, func(q *fakeQueue, late time.Duration) {
			time.AfterFunc(late, func() { q.add(numbered(5_000)...) })
		}},
		"had not answered": {time.Second, func(q *fakeQueue, late time.Duration) {
			q.add(numbered(5_000)...)
			q.onExchange = func(n int) (f fault) {
				if n == 1 {
					f.request = late
				}
				return f
			}
		}},
		// It is tried again each second.
		"had a server that was out": {10 * time.Second, func(q *fakeQueue, late time.Duration) {
			q.add(numbered(5_000)...)
			until := time.Now().Add(late)
			q.onExchange = func(int) (f fault) {
				if time.Now().Before(until) {
					f = unconnected
				}
				return f
			}
		}},
	} {
		for _, late := range []time.Duration{test.takes * 85 / 100, test.takes * 485 / 100} { // what it still runs then, it owes
			t.Run(fmt.Sprint("the others ", name, " for ", late), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					m := newTeam(10, always(test.takes), 1, 10, 9)
					m.fill(0, 1_000)
					test.begin(m.workers[1].queue, late)
					test.begin(m.workers[2].queue, late)
					m.run(t)
					time.Sleep(late + test.takes*6/10)
					before := m.done()
					require.GreaterOrEqual(t, before[0], int(10*late/test.takes), "it had all")
					for range 4 {
						time.Sleep(10 * test.takes)
						now := m.done()
						for i, share := range []float64{5, 50, 45} {
							require.InDelta(t, share, now[i]-before[i], 2+share/5, "%v %v", before, now)
						}
						before = now
					}
					m.stop()
				})
			})
		}
	}
}

// TestShare_NoUptimeIsTooLong: what queues are charged with, and when their handlers began, are sums
// that whole numbers would have no room for after days.
func TestShare_NoUptimeIsTooLong(t *testing.T) {
	l := &loop{opened: time.Now(), dealt: 1e17}
	q := &queue{client: new(client), place: -1}
	q.Weight = 1000
	l.wants(q)
	require.InDelta(t, l.dealt, l.turnOf(q, time.Now()), 100)

	const began = 3 * time.Hour
	a := account{running: 1_000_000}
	for range a.running {
		a.began += began
	}
	require.Negative(t, a.began)
	require.Equal(t, time.Second, a.each(began+time.Second))
	require.InDelta(t, float64(a.running)*float64(time.Second), a.used(began+time.Second), 1)
}
