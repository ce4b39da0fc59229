package taskloop

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/store"
)

// newHangable returns a loop on n queues, each with a client of its own as far as it hangs, whose
// handlers take a time.
func newHangable(concurrency, n int, takes time.Duration) *team {
	weights := make([]int, n)
	for i := range weights {
		weights[i] = 1
	}
	return newTeam(concurrency, always(takes), weights...)
}

// hang has queues hang, or answer again.
func (m *team) hang(hung bool, queues ...int) {
	for _, i := range queues {
		q := m.workers[i].queue
		q.set(func() { q.hung = hung })
	}
}

// TestShare_AHungOneCostsItsOwnTasksOnly: the others' are claimed as soon as without it.
func TestShare_AHungOneCostsItsOwnTasksOnly(t *testing.T) {
	for _, concurrency := range []int{4, 16, 64} {
		t.Run(fmt.Sprint(concurrency), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				m := newHangable(concurrency, 6, time.Millisecond)
				m.run(t)
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					for n := 1; sleep(ctx, 10*time.Millisecond); n++ {
						for i, w := range m.workers {
							w.queue.add(fmt.Sprintf("%d/%d", i, n))
						}
					}
				}()
				time.Sleep(2 * time.Second)
				for i, w := range m.workers {
					require.Less(t, w.queue.latest(), 30*time.Millisecond, "queue %d", i)
				}
				m.hang(true, 1, 4)
				time.Sleep(8 * time.Second)
				for _, i := range []int{0, 2, 3, 5} {
					require.Less(t, m.workers[i].queue.latest(), 50*time.Millisecond, "queue %d", i)
				}
				m.hang(false, 1, 4)
				cancel()
				time.Sleep(2 * time.Minute)
				for _, w := range m.workers {
					require.Empty(t, w.queue.left(), "what was leased by claims without an answer too")
				}
				for _, i := range []int{1, 4} {
					require.Equal(t, 1, m.workers[i].logged(warnOutage))
					require.Equal(t, 1, m.workers[i].logged(infoOver))
				}
				m.stop()
			})
		})
	}
}

// TestShare_ALateReplyIsHandedOut while a runner is free. Others have got those that were kept for
// it.
func TestShare_ALateReplyIsHandedOut(t *testing.T) {
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprint(busy), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				m := newHangable(4, 2, time.Second)
				near, far := m.workers[0], m.workers[1]
				far.queue.add(numbered(4)...)
				far.queue.onExchange = func(n int) fault {
					if n == 1 {
						return fault{reply: 800 * time.Millisecond}
					}
					return fault{}
				}
				m.run(t)
				time.Sleep(500 * time.Millisecond)
				if busy {
					near.queue.add(numbered(4)...)
				}
				time.Sleep(350 * time.Millisecond)
				if busy {
					require.Empty(t, far.tasks(), "there is no runner")
					require.Len(t, near.tasks(), 4, "the others have them")
					require.Positive(t, far.counts()[3], "it is given back")
				} else {
					require.NotEmpty(t, far.tasks())
				}
				time.Sleep(10 * time.Second)
				require.Empty(t, far.queue.left())
				m.stop()
			})
		})
	}
}

// TestShare_ExtensionsDoNotWaitForEachOther: where one queue does not answer.
func TestShare_ExtensionsDoNotWaitForEachOther(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newHangable(3, 3, 0)
		lost := make(chan int, 3)
		for i, w := range m.workers {
			w.queue.lease, w.Lease = 3*time.Second, 3*time.Second
			w.queue.add("long")
			w.handle = func(ctx context.Context, _ store.Task) error {
				if !sleep(ctx, time.Minute) {
					lost <- i
				}
				return ctx.Err()
			}
		}
		m.run(t)
		time.Sleep(500 * time.Millisecond)
		m.hang(true, 1)
		start := time.Now()
		time.Sleep(20 * time.Second)
		require.Equal(t, 1, <-lost)
		require.Empty(t, lost)
		for _, i := range []int{0, 2} {
			_, extensions := m.workers[i].queue.sent()
			require.InDelta(t, time.Since(start)/(850*time.Millisecond), len(extensions), 5)
		}
		m.hang(false, 1)
		time.Sleep(2 * time.Minute)
		m.stop()
	})
}

// TestShare_StopWithAHungOne: what the others are told is told at once, and only what the hung one
// has not acknowledged is left.
func TestShare_StopWithAHungOne(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newHangable(16, 4, time.Second)
		m.grace = 5 * time.Second
		for i := range m.workers {
			m.fill(i, 3)
		}
		m.run(t)
		time.Sleep(500 * time.Millisecond)
		m.hang(true, 2)
		m.stop()
		time.Sleep(600 * time.Millisecond)
		for i, w := range m.workers {
			require.Len(t, w.queue.left(), map[bool]int{true: 3}[i == 2], i)
		}
		require.Equal(t, Unfinished{Unacknowledged: 3}, *<-m.ended)
		time.Sleep(5 * time.Second) // the exchange that has no answer ends
	})
}

// TestShare_ExtensionsThatComeAfterTheEnd have no caller to wait for: what runs them ends, too.
// (Else the bubble finds it.)
func TestShare_ExtensionsThatComeAfterTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newHangable(16, 4, time.Minute)
		m.grace = time.Second
		for i := range m.workers {
			m.fill(i, 1)
		}
		m.run(t)
		time.Sleep(19500 * time.Millisecond)
		m.hang(true, 0, 1, 2, 3)
		m.stop()
		require.Equal(t, 4, (<-m.ended).Running)
		for _, w := range m.workers {
			_, extended := w.queue.sent()
			require.Len(t, extended, 1, "it is under way")
		}
		time.Sleep(time.Minute) // the handlers return
	})
}

// TestShare_EachHasItsOwnBatchOfExtensions, also while another one's has no answer.
func TestShare_EachHasItsOwnBatchOfExtensions(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m := newHangable(2, 2, 0)
		l := newLoop(t.Context(), Config{Concurrency: 2, Queues: []Queue{m.workers[0].Queue, m.workers[1].Queue}})
		for _, q := range l.queues {
			l.handling.add(&delivery{queue: q, task: store.Task{ID: "a"}, until: time.Now().Add(time.Minute), hold: new(lease.Hold)})
		}
		l.queues[0].extensions, l.extensions = 1, 1
		l.checkLeases(time.Now())
		l.extend()
		require.Equal(t, 1, l.queues[0].extensions)
		require.Equal(t, 1, l.queues[1].extensions)
		require.Equal(t, 2, l.extensions)
		l.handleExtension(<-l.extended)
	})
}

// TestQueue_AnOutageIsNotUsual: runners are not kept for longer because one exchange has hung.
func TestQueue_AnOutageIsNotUsual(t *testing.T) {
	t.Parallel()
	q, l := &queue{client: new(client)}, new(loop)
	require.Equal(t, minLapse, l.lapsesAfter(q))
	q.noteExchange(time.Millisecond)
	q.noteExchange(3 * time.Second)
	require.Equal(t, minLapse, l.lapsesAfter(q))
	for range 100 {
		q.noteExchange(40 * time.Millisecond)
	}
	require.InDelta(t, 160*time.Millisecond, l.lapsesAfter(q), float64(5*time.Millisecond))
}
