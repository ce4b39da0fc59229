package taskloop

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/store"
)

const (
	warnStuck  = "WARN sluice: handler is stuck"
	stuckAfter = time.Minute + 10*time.Second // Timeout and Grace of hanging workers
	stuckLease = 30 * time.Second
)

// hangs returns a worker whose handlers return when the channel is closed, whatever their contexts
// say.
func hangs(q *fakeQueue, concurrency int) (w *worker, release chan struct{}) {
	w, release = newWorker(q, concurrency, 0), make(chan struct{})
	w.Timeout, w.Grace = time.Minute, 10*time.Second
	w.handle = func(context.Context, store.Task) error {
		<-release
		return nil
	}
	return w, release
}

// at waits until it is so late since the start of a worker, and for what happens then.
func (w *worker) at(since time.Duration) {
	time.Sleep(time.Until(w.start.Add(since)))
	synctest.Wait()
}

// requireStuck fails the test unless so many handlers are stuck now, and so many were called.
func (w *worker) requireStuck(t *testing.T, stuck, called int) {
	t.Helper()
	require.EqualValues(t, stuck, w.Counters.Stuck.Load())
	require.Len(t, w.tasks(), called)
}

// TestStuck_HandlersAreReplacedUpToTheBound: each is told of once, as many as may run are replaced,
// and all that return free their places.
func TestStuck_HandlersAreReplacedUpToTheBound(t *testing.T) {
	for _, n := range []int{1, 7, 16, 1000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(stuckLease, numbered(5*n)...)
				w, release := hangs(q, n)
				w.run(t)
				w.at(stuckAfter - 1)
				w.requireStuck(t, 0, n)
				w.at(stuckAfter)
				w.requireStuck(t, n, 2*n)
				require.Equal(t, n, w.logged(warnStuck))
				w.at(2*stuckAfter - 1)
				w.requireStuck(t, n, 2*n)
				_, before := q.sent()
				w.at(2 * stuckAfter)
				w.requireStuck(t, 2*n, 2*n)
				w.at(time.Hour)
				w.requireStuck(t, 2*n, 2*n)
				require.EqualValues(t, 2*n, w.Counters.Running.Load())
				require.Equal(t, 2*n, w.logged("sluice:"), "and nothing else")
				require.Equal(t, [5]int64{4: int64(2 * n)}, w.counts())
				require.Equal(t, slices.Repeat([]time.Duration{stuckAfter}, 2*n), w.stuck)
				_, after := q.sent()
				require.Len(t, after, len(before), "no lease is extended any more")
				close(release)
				synctest.Wait()
				require.Zero(t, w.Counters.Stuck.Load())
				time.Sleep(time.Minute)
				require.Empty(t, q.left())
				require.Equal(t, [5]int64{int64(5 * n), 4: int64(2 * n)}, w.counts())
				told, _ := w.told(Lost)
				require.EqualValues(t, 2*n, told)
				require.Equal(t, 2*n, w.peak())
				require.Nil(t, w.end())
			})
		})
	}
}

// TestStuck_AnotherWorkerHasTheTask when the lease has ended, and what the stuck handler returns
// then has no effect.
func TestStuck_AnotherWorkerHasTheTask(t *testing.T) {
	for name, err := range map[string]error{"done": nil, "failed": errFault} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(stuckLease, "a", "b")
				w, release := hangs(q, 1)
				contexts := make(chan context.Context, 9)
				w.handle = func(ctx context.Context, _ store.Task) error {
					contexts <- ctx
					<-release
					return err
				}
				w.run(t)
				w.at(stuckAfter - 1)
				ctx := <-contexts
				require.True(t, lease.IsHeld(ctx))
				require.NoError(t, ctx.Err(), "the Policy ends it")
				w.at(stuckAfter)
				require.False(t, lease.IsHeld(ctx))
				require.ErrorIs(t, context.Cause(ctx), lease.ErrLost)
				w.requireStuck(t, 1, 2)
				other := newWorker(q, 1, time.Second).run(t)
				w.at(stuckAfter + stuckLease - time.Second)
				require.Equal(t, []string{"a"}, other.tasks())
				require.Equal(t, []string{"a", "b"}, w.tasks())
				require.Equal(t, [5]int64{1}, other.counts())
				close(release)
				time.Sleep(time.Minute)
				require.Empty(t, q.left())
				require.EqualValues(t, 1, w.Counters.Ended[Lost].Load())
				told, _ := w.told(Lost)
				require.EqualValues(t, 1, told)
				require.Nil(t, w.end())
				require.Nil(t, other.end())
			})
		})
	}
}

// TestStuck_IsOneThatHasNotReturned, whatever has become of its lease, and how it returns.
func TestStuck_IsOneThatHasNotReturned(t *testing.T) {
	for name, test := range map[string]struct {
		happens func(w *worker) // after a second
		takes   time.Duration   // if not until the release
		stuck   int64
		ending  Ending
		warned  int // of the lost lease
	}{
		"hangs":            {stuck: 1, ending: Lost},
		"no timeout":       {takes: 10 * time.Hour, ending: Done},
		"just in time":     {takes: stuckAfter - 1, ending: Done},
		"just too late":    {takes: stuckAfter + 1, stuck: 1, ending: Lost},
		"was cancelled":    {happens: func(w *worker) { w.queue.set(func() { w.queue.items = nil }) }, stuck: 1, ending: Canceled},
		"was lost":         {happens: func(w *worker) { w.queue.steal("a") }, stuck: 1, ending: Lost, warned: 1},
		"exits":            {stuck: 1, ending: Lost},
		"its Policy hangs": {stuck: 1, ending: Lost},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(stuckLease, "a")
				w, release := hangs(q, 2)
				w.handle = func(_ context.Context, task store.Task) error {
					switch {
					case task.ID != "a":
						time.Sleep(time.Second)
						return nil
					case name == "its Policy hangs":
						return nil
					case test.takes > 0:
						time.Sleep(test.takes)
						return nil
					}
					<-release
					if name == "exits" {
						runtime.Goexit()
					}
					return nil
				}
				w.decide = func(task store.Task, _, _ error) store.Disposition {
					if task.ID == "a" && name == "its Policy hangs" {
						<-release
					}
					return store.Disposition{Action: store.Finish}
				}
				if name == "no timeout" {
					w.Timeout = 0
				}
				w.run(t)
				w.at(time.Second)
				if test.happens != nil {
					test.happens(w)
				}
				w.at(stuckAfter)
				require.Equal(t, test.stuck, w.Counters.Stuck.Load())
				require.EqualValues(t, test.stuck, w.logged(warnStuck))
				w.at(stuckAfter + 2)
				if test.stuck > 0 {
					q.set(func() { q.items = nil }) // so that it is not handed out again
				}
				close(release)
				w.at(11 * time.Hour)
				require.Zero(t, w.Counters.Stuck.Load())
				require.EqualValues(t, 1, w.Counters.Ended[test.ending].Load())
				told, _ := w.told(test.ending)
				require.EqualValues(t, 1, told)
				require.Equal(t, test.warned, w.logged(warnLost))
				q.add("next", "after") // no runner is missing
				time.Sleep(time.Second + 1)
				require.Empty(t, q.left())
				require.Nil(t, w.end())
			})
		})
	}
}

// TestStuck_IsNoneThatHasReturned, though the loop has not noticed: what it has returned counts.
func TestStuck_IsNoneThatHasReturned(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		l := newLoop(t.Context(), newWorker(newQueue(time.Hour), 1, 0).config())
		l.runners = 1 // there is none
		d := &delivery{queue: l.queues[0], task: store.Task{ID: "a"}}
		d.leased(time.Now(), time.Hour)
		l.dispatch(d)
		(<-l.work).begin(time.Second)
		time.Sleep(l.Grace + time.Second)
		l.deliver(d)
		l.checkLeases(time.Now())
		require.False(t, d.stuck)
		l.gather()
		require.Equal(t, pending, d.state)
		l.close()
	})
}

// TestStuck_LeavesNothingToExtend: a queue that has but stuck ones has no extension that could
// fail, and what others extend stays counted.
func TestStuck_LeavesNothingToExtend(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		l := newLoop(t.Context(), newWorker(newQueue(time.Hour), 2, 0).config())
		l.runners = 2 // there is none
		dispatch := func(id string) *delivery {
			d := &delivery{queue: l.queues[0], task: store.Task{ID: id}}
			d.leased(time.Now(), time.Hour)
			l.dispatch(d)
			(<-l.work).begin(time.Second)
			return d
		}
		d := dispatch("a")
		time.Sleep(l.Grace + time.Second)
		l.checkLeases(time.Now())
		require.True(t, d.stuck)
		require.Zero(t, l.queues[0].active)
		other := dispatch("b")
		l.deliver(d)
		l.gather()
		require.Equal(t, 1, l.queues[0].active)
		l.deliver(other)
		l.gather()
		require.Zero(t, l.queues[0].active)
		l.close()
	})
}

// TestStuck_APartOfTheWorkHasItsOwnTimeout, as a kind of tasks has, as long as it takes; what is
// sooner counts.
func TestStuck_APartOfTheWorkHasItsOwnTimeout(t *testing.T) {
	for name, test := range map[string]struct {
		part, takes, timeout time.Duration
		stuck                time.Duration
	}{
		"sooner":             {part: 20 * time.Second, takes: time.Hour, timeout: time.Minute, stuck: 30 * time.Second},
		"later":              {part: 2 * time.Minute, takes: time.Hour, timeout: time.Minute, stuck: stuckAfter},
		"the only one":       {part: 2 * time.Minute, takes: time.Hour, stuck: 130 * time.Second},
		"over":               {part: 20 * time.Second, takes: 29 * time.Second, timeout: time.Minute, stuck: stuckAfter},
		"over, and no other": {part: 20 * time.Second, takes: 29 * time.Second},
		"soon":               {timeout: 1, stuck: 10*time.Second + 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(stuckLease, "a")
				w, release := hangs(q, 1)
				w.Timeout = test.timeout
				w.handle = func(ctx context.Context, _ store.Task) error {
					if test.part > 0 {
						part, stop := lease.WithTimeout(context.WithValue(ctx, logger{}, 1), test.part)
						at, ok := part.Deadline()
						require.True(t, ok)
						require.Equal(t, test.part, time.Until(at))
						time.Sleep(test.takes)
						stop()
						require.Error(t, part.Err())
					}
					<-release
					return nil
				}
				w.run(t)
				if test.stuck > 0 {
					w.at(test.stuck - 1)
					require.Zero(t, w.Counters.Stuck.Load())
					w.at(test.stuck)
					require.EqualValues(t, 1, w.Counters.Stuck.Load())
					require.Equal(t, []time.Duration{test.stuck}, w.stuck)
					q.set(func() { q.items = nil }) // so that it is not handed out again
				}
				w.at(24 * time.Hour)
				require.Equal(t, test.stuck > 0, w.Counters.Stuck.Load() > 0)
				close(release)
				time.Sleep(time.Minute)
				require.Zero(t, w.Counters.Stuck.Load())
				require.Nil(t, w.end())
			})
		})
	}
}

// TestStuck_IsSoonIfGraceIsShort: it is found out when it is so, not when a lease is extended.
func TestStuck_IsSoonIfGraceIsShort(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w, release := hangs(newQueue(stuckLease, "a"), 1)
		w.Timeout, w.Grace = 10*time.Millisecond, time.Millisecond
		w.run(t)
		w.at(11*time.Millisecond - 1)
		w.requireStuck(t, 0, 1)
		w.at(11 * time.Millisecond)
		w.requireStuck(t, 1, 1)
		close(release)
		w.at(time.Minute)
		require.Nil(t, w.end())
	})
}

// TestStuck_CountsInWhatIsUnfinished, and what it returns after the end is told once.
func TestStuck_CountsInWhatIsUnfinished(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w, release := hangs(newQueue(stuckLease, numbered(5)...), 2)
		w.run(t)
		w.at(stuckAfter + time.Second)
		w.requireStuck(t, 2, 4)
		stopped := time.Now()
		require.Equal(t, Unfinished{Running: 4}, *w.end())
		require.Equal(t, w.Grace+lastWait, time.Since(stopped))
		w.requireStuck(t, 2, 4)
		close(release)
		synctest.Wait()
		w.requireStuck(t, 0, 4)
		require.Equal(t, [5]int64{4: 4}, w.counts())
		told, _ := w.told(Lost)
		require.EqualValues(t, 4, told)
	})
}

// TestStuck_WaitsForThoseThatReturnInGrace at the end, like others.
func TestStuck_WaitsForThoseThatReturnInGrace(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w, release := hangs(newQueue(stuckLease, "a"), 1)
		w.run(t)
		w.at(stuckAfter)
		w.requireStuck(t, 1, 1)
		w.stop()
		time.Sleep(5 * time.Second)
		require.Empty(t, w.ended)
		close(release)
		require.Nil(t, <-w.ended)
	})
}

// hangingTeam is a team whose handlers hang, in each queue until something comes from its channel.
func hangingTeam(concurrency int, weights ...int) (m *team, release []chan struct{}, called []*atomic.Int64) {
	m = newTeam(concurrency, nil, weights...)
	for i, w := range m.workers {
		release, called = append(release, make(chan struct{})), append(called, new(atomic.Int64))
		w.queue.lease, w.Lease, w.Timeout = time.Hour, time.Hour, time.Minute
		w.handle = func(context.Context, store.Task) error {
			called[i].Add(1)
			<-release[i]
			return nil
		}
		m.fill(i, 100)
	}
	return m, release, called
}

// TestStuck_PlacesChange: more places are room for more that are replaced; with fewer, those that
// were stay so; and one that returns makes room for another one that is stuck.
func TestStuck_PlacesChange(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, release, called := hangingTeam(2, 1)
		requireCalled := func(n, stuck int) {
			t.Helper()
			time.Sleep(10 * time.Minute)
			require.EqualValues(t, n, called[0].Load())
			require.EqualValues(t, stuck, m.workers[0].Counters.Stuck.Load())
		}
		m.run(t)
		requireCalled(4, 4)
		m.set(3)
		time.Sleep(time.Second)
		require.EqualValues(t, 6, called[0].Load(), "at once")
		requireCalled(6, 6)
		release[0] <- struct{}{}
		requireCalled(7, 6)
		m.set(1)
		requireCalled(7, 6)
		for range 5 {
			release[0] <- struct{}{}
		}
		requireCalled(8, 2)
		close(release[0])
		requireStuckEnd(t, m)
	})
}

// TestStuck_ThoseThatWereReplacedStaySo when there are fewer places: one that works is not given up
// for a stuck one.
func TestStuck_ThoseThatWereReplacedStaySo(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		m, release, called := hangingTeam(3, 1)
		q := m.workers[0].queue
		q.items = q.items[:3]
		m.run(t)
		time.Sleep(10 * time.Minute)
		m.set(1)
		q.add(numbered(9)...)
		time.Sleep(10 * time.Minute)
		require.EqualValues(t, 4, called[0].Load())
		m.setOf(0, 5)
		time.Sleep(10 * time.Minute)
		require.EqualValues(t, 4, called[0].Load(), "the bound of all counts, too")
		m.set(10)
		time.Sleep(10 * time.Minute)
		require.EqualValues(t, 10, called[0].Load(), "5 of its own places, and as many that are replaced")
		close(release[0])
		requireStuckEnd(t, m)
	})
}

func requireStuckEnd(t *testing.T, m *team) {
	t.Helper()
	time.Sleep(3 * time.Hour)
	for _, w := range m.workers {
		require.Zero(t, w.Counters.Stuck.Load())
		require.Empty(t, w.queue.left())
	}
	m.stop()
	time.Sleep(time.Minute)
}

// TestStuck_TakeNoPlacesOfOtherQueues, up to the bound of all, and that of their own.
func TestStuck_TakeNoPlacesOfOtherQueues(t *testing.T) {
	for name, test := range map[string]struct{ own, hang, others int }{
		"no bound of its own": {1_000_000, 10, 10},
		"a bound of its own":  {3, 6, 7},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				m, release, called := hangingTeam(10, 1, 1, 1)
				m.workers[0].Concurrency = test.own
				var running, most atomic.Int64
				for _, w := range m.workers[1:] {
					w.queue.items = nil
					w.handle = func(context.Context, store.Task) error {
						most.Store(max(most.Load(), running.Add(1)))
						defer running.Add(-1)
						time.Sleep(time.Second)
						return nil
					}
				}
				if test.own > 10 {
					m.workers[0].queue.items = m.workers[0].queue.items[:10]
				}
				m.run(t)
				time.Sleep(10 * time.Minute)
				require.EqualValues(t, test.hang, called[0].Load())
				require.EqualValues(t, test.hang, m.workers[0].Counters.Stuck.Load())
				m.fill(1, 1000)
				m.fill(2, 1000)
				time.Sleep(100 * time.Second)
				require.EqualValues(t, test.others, most.Load())
				require.InDelta(t, 100*test.others, 2000-len(m.workers[1].queue.left())-len(m.workers[2].queue.left()), 50)
				close(release[0])
				requireStuckEnd(t, m)
			})
		})
	}
}
