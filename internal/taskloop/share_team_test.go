package taskloop

import (
	"context"
	"fmt"
	"slices"
	"sync"
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

// newTeam returns a loop that is not running yet: a queue for each weight, which is half a
// millisecond away.
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

// idleSince returns for how long a runner had nothing to do, though there were tasks, that has been
// free since a time. The mutex is held.
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
