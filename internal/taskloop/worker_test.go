package taskloop

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/store"
)

// worker is a run loop on a queue, and what its policy was called with.
type worker struct {
	Queue
	Grace    time.Duration
	Canceled <-chan string
	queue    *fakeQueue
	*witness
	handle func(ctx context.Context, t store.Task) error
	decide func(t store.Task, err error, ended error) store.Disposition
	start  time.Time
	stop   context.CancelFunc
	ended  chan *Unfinished // cap 1

	mu      sync.Mutex // guards what follows
	handled []string   // tasks whose handlers were called
	running int
	most    int // at once
	lines   []string
}

// newWorker returns a worker that is not running yet. Its handler takes takes, and its
// policy is that of most workers.
func newWorker(q *fakeQueue, concurrency int, takes time.Duration) *worker {
	w := &worker{queue: q, ended: make(chan *Unfinished, 1)}
	w.Grace = time.Minute
	w.Queue = Queue{
		Source: q, Policy: w, Weight: 1, Concurrency: concurrency, Lease: q.lease,
		Log: slog.New(logger{w}), Counters: new(Counters),
	}
	w.witness = &witness{}
	w.Observer = w.witness
	w.handle = func(context.Context, store.Task) error {
		time.Sleep(takes)
		return nil
	}
	w.decide = func(_ store.Task, err error, ended error) store.Disposition {
		switch {
		case err == nil:
			return store.Disposition{Action: store.Finish}
		case ended != nil:
			return store.Disposition{Action: store.Release}
		}
		return store.Disposition{Action: store.Retry, Delay: time.Second}
	}
	return w
}

// config is that of a loop with this queue alone.
func (w *worker) config() Config {
	return Config{Queues: []Queue{w.Queue}, Concurrency: w.Concurrency, Grace: w.Grace, Canceled: w.Canceled, Sizes: NewSizes()}
}

// inBubble runs a test of a worker on a fake clock.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// run starts the loop. If the test fails, the loop ends with it.
func (w *worker) run(t *testing.T) *worker {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w.stop, w.start = cancel, time.Now()
	over := make(chan struct{})
	go func() {
		defer close(over)
		w.ended <- Run(ctx, w.config())
	}()
	t.Cleanup(func() {
		cancel()
		<-over
		synctest.Wait()
		w.check(t, w)
	})
	return w
}

// end stops the loop and returns what it leaves.
func (w *worker) end() *Unfinished {
	w.stop()
	return <-w.ended
}

func (w *worker) Handle(ctx context.Context, t store.Task) error {
	w.mu.Lock()
	w.handled = append(w.handled, t.ID)
	w.running++
	w.most = max(w.most, w.running)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.running--
	}()
	return w.handle(ctx, t)
}

func (w *worker) Decide(ctx context.Context, t store.Task, err error) store.Disposition {
	return w.decide(t, err, context.Cause(ctx))
}

func (w *worker) Fallback(store.Task) store.Disposition {
	return store.Disposition{Action: store.Bury, Reason: "fallback"}
}

func (w *worker) Accepted(store.Task) {}

func (w *worker) tasks() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.handled)
}

// peak is how many handlers have run at once.
func (w *worker) peak() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.most
}

// counts are the counters: done, retried, buried, released, lost.
func (w *worker) counts() [5]int64 {
	c := w.Counters
	return [5]int64{c.Ended[Done].Load(), c.Ended[Retried].Load(), c.Ended[Buried].Load(), c.Ended[Released].Load(), c.Ended[Lost].Load()}
}

// logged is how often the log has a line with that text.
func (w *worker) logged(text string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, line := range w.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// logger is a worker's log.
type logger struct{ *worker }

func (logger) Enabled(context.Context, slog.Level) bool { return true }
func (l logger) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l logger) WithGroup(string) slog.Handler          { return l }
func (l logger) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, r.Level.String()+" "+r.Message)
	return nil
}

const (
	warnOutage = "WARN sluice: worker cannot use its queue"
	infoOver   = "INFO sluice: worker uses its queue again"
	warnLost   = "WARN sluice: lease lost"
)

func TestRun_HandlesAtMostConcurrencyAtOnce(t *testing.T) {
	for _, concurrency := range []int{1, 3, 7, 8, 16} {
		t.Run("", func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(time.Minute, numbered(5*concurrency)...)
				w := newWorker(q, concurrency, time.Second).run(t)
				time.Sleep(5*time.Second - time.Millisecond)
				require.Equal(t, concurrency, w.peak())
				require.EqualValues(t, concurrency, w.Counters.Running.Load())
				time.Sleep(2 * time.Millisecond)
				require.Empty(t, q.left(), "no runner was idle")
				require.Nil(t, w.end())
				require.Equal(t, [5]int64{int64(5 * concurrency)}, w.counts())
				require.ElementsMatch(t, numbered(5*concurrency), w.tasks())
				require.Zero(t, w.Counters.Running.Load())
			})
		})
	}
}

// TestRun_ReportsAndClaimsInOneExchange: a task costs one exchange.
func TestRun_ReportsAndClaimsInOneExchange(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Minute, numbered(3)...)
		q.latency = 10 * time.Millisecond
		w := newWorker(q, 1, time.Second).run(t)
		time.Sleep(time.Minute)
		exchanges, _ := q.sent()
		require.Equal(t, []exchanged{
			{w.start, map[store.Settler][]string{}, 1},
			{w.start.Add(1010 * time.Millisecond), map[store.Settler][]string{store.ByExchange: {"r1 t1"}}, 1},
			{w.start.Add(2020 * time.Millisecond), map[store.Settler][]string{store.ByExchange: {"r2 t2"}}, 1},
			{w.start.Add(3030 * time.Millisecond), map[store.Settler][]string{store.ByExchange: {"r3 t3"}}, 1},
		}, exchanges, "and nothing is sent while nothing is due")
		q.add("t4")
		synctest.Wait()
		exchanges, _ = q.sent()
		require.Len(t, exchanges, 5, "what is due is claimed at once")
		require.Nil(t, w.end())
	})
}

func TestRun_GroupsByOperation(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Minute, "complete", "release", "retry", "set aside")
		q.latency = 10 * time.Millisecond
		w := newWorker(q, 4, time.Second)
		w.decide = func(task store.Task, _ error, _ error) store.Disposition {
			return map[string]store.Disposition{
				"complete":  {Action: store.Finish},
				"release":   {Action: store.Release, Delay: time.Hour},
				"retry":     {Action: store.Retry, Delay: time.Hour},
				"set aside": {Action: store.Bury, Reason: "bad"},
			}[task.ID]
		}
		w.run(t)
		time.Sleep(1500 * time.Millisecond)
		exchanges, _ := q.sent()
		got := map[store.Settler]int{}
		for _, x := range exchanges[1:] {
			for operation, tasks := range x.reports {
				got[operation] += len(tasks)
			}
		}
		require.Equal(t, map[store.Settler]int{store.ByExchange: 1, store.ByGiveBack: 2, store.ByBury: 1}, got)
		require.Equal(t, [5]int64{1, 1, 1, 1, 0}, w.counts())
		require.Equal(t, []string{"release", "retry", "set aside buried: bad"}, q.left())
		require.Nil(t, w.end())
	})
}

// TestRun_WhatComesNextTakesTheTasksPlace, whatever the action is. Not much more than a megabyte of
// it is sent at a time.
func TestRun_WhatComesNextTakesTheTasksPlace(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Minute, "done", "again", "retried", "set aside", "large", "larger")
		q.latency = 10 * time.Millisecond
		w := newWorker(q, 6, time.Second)
		actions := map[string]store.Action{"done": store.Finish, "again": store.Again, "retried": store.Retry, "set aside": store.Bury, "large": store.Finish, "larger": store.Finish}
		sizes := map[string]int{"large": store.MaxGroupBytes/2 + 1, "larger": 2 * store.MaxGroupBytes}
		at := time.Now().Add(time.Hour)
		w.decide = func(task store.Task, _ error, _ error) store.Disposition {
			payload := strings.Repeat("p", max(1, sizes[task.ID]))
			return store.Disposition{Action: actions[task.ID], Delay: time.Minute, Next: &store.Next{At: at, Payload: payload}}
		}
		w.run(t)
		time.Sleep(59 * time.Minute)
		exchanges, _ := q.sent()
		for _, x := range reportedIn(exchanges) {
			size := 0
			require.NotContains(t, x.reports, store.ByExchange)
			require.NotContains(t, x.reports, store.ByBury)
			for _, sent := range x.reports[store.ByGiveBack] {
				_, id, _ := strings.Cut(sent, " ")
				size += max(1, sizes[id])
			}
			require.True(t, size <= store.MaxGroupBytes || len(x.reports[store.ByGiveBack]) == 1, "%d bytes: %v", size, x.reports)
		}
		require.Len(t, w.tasks(), 6, "once each")
		require.Len(t, q.left(), 6)
		require.Equal(t, [5]int64{3, 2, 0, 0, 0}, w.counts(), "nothing is buried")
		require.EqualValues(t, 1, w.Counters.Ended[Again].Load())
		require.Equal(t, 1, w.logged("failed for good"))
		q.set(func() {
			for _, i := range q.items {
				require.Equal(t, at, i.due)
				require.Zero(t, i.Attempt)
			}
		})
		require.Nil(t, w.end())
	})
}

// TestRun_NoGroupIsTooLarge for one script.
func TestRun_NoGroupIsTooLarge(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Minute, numbered(1000)...)
		q.latency = 10 * time.Millisecond
		w := newWorker(q, 1000, time.Second)
		gate := make(chan struct{})
		w.handle = func(context.Context, store.Task) error {
			<-gate
			return nil
		}
		w.run(t)
		time.Sleep(time.Second)
		require.Equal(t, 1000, w.peak())
		close(gate)
		time.Sleep(time.Second)
		exchanges, _ := q.sent()
		for _, x := range exchanges {
			require.LessOrEqual(t, x.claim, store.MaxGroup)
			require.LessOrEqual(t, len(x.reports[store.ByExchange]), store.MaxGroup)
		}
		require.Equal(t, [5]int64{1000}, w.counts())
		require.Nil(t, w.end())
	})
}

// TestRun_TwoExchangesAtATimeWithManyRunners: from halvesFrom on, and never more.
func TestRun_TwoExchangesAtATimeWithManyRunners(t *testing.T) {
	for concurrency, want := range map[int]int{1: 1, halvesFrom - 1: 1, halvesFrom: 2, 64: 2} {
		t.Run("", func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(time.Minute, numbered(20*concurrency)...)
				q.latency = 100 * time.Millisecond
				w := newWorker(q, concurrency, 30*time.Millisecond).run(t)
				time.Sleep(time.Minute)
				require.Empty(t, q.left())
				require.Equal(t, want, q.atOnce())
				exchanges, _ := q.sent()
				for _, x := range exchanges {
					if want == 2 {
						require.LessOrEqual(t, x.claim, (concurrency+1)/2, "half of the runners")
					}
				}
				require.Nil(t, w.end())
			})
		})
	}
}

// TestRun_AnotherRunnerTakesOverAfterGoexit: in the handler, which is then an error, and in
// the policy, whose fallback decides.
func TestRun_AnotherRunnerTakesOverAfterGoexit(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Minute, "a", "exits", "b", "policy exits", "c", "both exit", "d")
		w := newWorker(q, 1, 0)
		w.handle = func(_ context.Context, task store.Task) error {
			if task.Attempt == 1 && task.ID == "exits" || task.ID == "both exit" {
				runtime.Goexit()
			}
			return nil
		}
		decide := w.decide
		w.decide = func(task store.Task, err error, ended error) store.Disposition {
			if task.ID == "policy exits" && err == nil || task.ID == "both exit" {
				runtime.Goexit() // of a handler that has returned it is not asked twice
			}
			if task.ID == "exits" && task.Attempt == 1 {
				require.ErrorIs(t, err, ErrExited)
			} else {
				require.NoError(t, err)
			}
			return decide(task, err, ended)
		}
		w.run(t)
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, []string{"exits", "policy exits buried: fallback", "both exit buried: fallback"}, q.left())
		time.Sleep(time.Second)
		require.Equal(t, [5]int64{5, 1, 2, 0, 0}, w.counts())
		require.Equal(t, 2, w.tasksNamed("exits"), "it was tried again")
		require.Zero(t, w.Counters.Running.Load())
		require.Nil(t, w.end())
	})
}

func (w *worker) tasksNamed(id string) (n int) {
	for _, other := range w.tasks() {
		if other == id {
			n++
		}
	}
	return n
}
