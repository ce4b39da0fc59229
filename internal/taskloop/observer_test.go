package taskloop

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/store"
)

// witness is the Observer of every worker in these tests. When a worker has ended, the test fails
// unless each Started had its one Finished, and each Finished is in the counters.
type witness struct {
	observed sync.Mutex // guards what follows
	started  int64
	finished [Lost + 1]int64
	last     Finished
	stuck    []time.Duration // how long each handler has run that is stuck
	faults   []string
}

// sighting is a handler that a witness was told of.
type sighting struct {
	id       string
	finished atomic.Bool
	stuck    bool
}

type sightingKey struct{}

func (w *witness) Claimed([]store.Task) {}

func (w *witness) Started(ctx context.Context, t store.Task) context.Context {
	w.observed.Lock()
	defer w.observed.Unlock()
	w.started++
	return context.WithValue(ctx, sightingKey{}, &sighting{id: t.ID})
}

func (w *witness) Finished(ctx context.Context, t store.Task, f Finished) {
	w.observed.Lock()
	defer w.observed.Unlock()
	s, _ := ctx.Value(sightingKey{}).(*sighting)
	switch {
	case s == nil:
		w.faults = append(w.faults, t.ID+" was finished with another context")
	case s.finished.Swap(true):
		w.faults = append(w.faults, t.ID+" was finished twice")
	case t.ID != s.id || len(t.Payload) == 0:
		w.faults = append(w.faults, s.id+" was finished as "+t.ID)
	}
	w.finished[f.Ending]++
	w.last = f
}

func (w *witness) Stuck(ctx context.Context, t store.Task, running time.Duration) {
	w.observed.Lock()
	defer w.observed.Unlock()
	if s, _ := ctx.Value(sightingKey{}).(*sighting); s == nil || s.id != t.ID || s.finished.Load() || s.stuck {
		w.faults = append(w.faults, t.ID+" was told as stuck twice, too late or as another one")
	} else {
		s.stuck = true
	}
	w.stuck = append(w.stuck, running)
}

// told returns how many handlers a witness was told of that have ended like that, and the last.
func (w *witness) told(e Ending) (int64, Finished) {
	w.observed.Lock()
	defer w.observed.Unlock()
	return w.finished[e], w.last
}

// check is for a worker that has ended.
func (w *witness) check(t *testing.T, of *worker) {
	w.observed.Lock()
	defer w.observed.Unlock()
	c := of.Counters
	counts := [...]int64{Done: c.Ended[Done].Load(), Retried: c.Ended[Retried].Load(), Buried: c.Ended[Buried].Load(),
		Canceled: c.Ended[Canceled].Load(), Released: c.Ended[Released].Load(), Discarded: c.Ended[Discarded].Load(), Again: c.Ended[Again].Load(), Lost: c.Ended[Lost].Load()}
	unfinished := w.started
	for e := Done; e <= Lost; e++ {
		unfinished -= w.finished[e]
		// What was never begun is released, lost or cancelled, and not finished.
		if w.finished[e] > counts[e] || e < Canceled && w.finished[e] < counts[e] {
			t.Errorf("%d endings of kind %d, counted %d", w.finished[e], e, counts[e])
		}
	}
	if running := c.Running.Load(); unfinished != running {
		t.Errorf("%d were not finished, %d handlers run", unfinished, running)
	}
	if len(w.faults) > 0 {
		t.Error(w.faults)
	}
}

// TestObserver_IsToldWhatBecomesOfATask, when that is decided.
func TestObserver_IsToldWhatBecomesOfATask(t *testing.T) {
	failed := errors.New("failed")
	for name, test := range map[string]struct {
		handle func(ctx context.Context) error
		decide store.Disposition
		want   Finished
	}{
		"done":      {func(context.Context) error { return nil }, store.Disposition{Action: store.Finish}, Finished{Ending: Done}},
		"retried":   {func(context.Context) error { return failed }, store.Disposition{Action: store.Retry, Delay: time.Hour}, Finished{Ending: Retried, Err: failed}},
		"buried":    {func(context.Context) error { return failed }, store.Disposition{Action: store.Bury}, Finished{Ending: Buried, Err: failed}},
		"discarded": {func(context.Context) error { return failed }, store.Disposition{Action: store.Discard}, Finished{Ending: Discarded, Err: failed}},
		"released":  {func(context.Context) error { return failed }, store.Disposition{Action: store.Release}, Finished{Ending: Released, Err: failed}},
		"again":     {func(context.Context) error { return failed }, store.Disposition{Action: store.Again, Delay: time.Hour}, Finished{Ending: Again, Err: failed}},
		"exited": {func(context.Context) error { runtime.Goexit(); return nil }, store.Disposition{Action: store.Bury},
			Finished{Ending: Buried, Err: ErrExited}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				q := newQueue(time.Minute, "a")
				w := newWorker(q, 1, 0)
				q.latency = 2 * time.Second
				w.handle = func(ctx context.Context, _ store.Task) error {
					require.NotNil(t, ctx.Value(sightingKey{}), "the handler gets the context that Started returns")
					time.Sleep(time.Second)
					return test.handle(ctx)
				}
				w.decide = func(store.Task, error, error) store.Disposition { return test.decide }
				w.run(t)
				time.Sleep(4 * time.Second) // a claim, the handler, and half of an exchange
				w.stop()
				synctest.Wait()
				n, _ := w.told(test.want.Ending)
				require.Zero(t, n, "Redis has not accepted it")
				time.Sleep(time.Minute)
				test.want.Took = time.Second
				n, last := w.told(test.want.Ending)
				require.EqualValues(t, 1, n)
				require.Equal(t, test.want, last)
			})
		})
	}
}

// TestObserver_IsToldOfALossWhenTheHandlerHasReturned, and not before.
func TestObserver_IsToldOfALossWhenTheHandlerHasReturned(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(10*time.Second, "a")
		q.onExtend = func(int) fault { return requestFails }
		w := newWorker(q, 1, 0)
		w.handle = func(ctx context.Context, _ store.Task) error {
			<-ctx.Done()
			require.Less(t, time.Since(w.start), 10*time.Second)
			q.set(func() { q.items = nil }) // what comes next is of no interest
			time.Sleep(time.Minute)
			return ctx.Err()
		}
		w.run(t)
		time.Sleep(30 * time.Second)
		require.EqualValues(t, 1, w.Counters.Ended[Lost].Load())
		n, _ := w.told(Lost)
		require.Zero(t, n)
		time.Sleep(time.Hour)
		n, f := w.told(Lost)
		require.EqualValues(t, 1, n)
		require.ErrorIs(t, f.Err, context.Canceled)
		require.Greater(t, f.Took, time.Minute)
	})
}

// TestObserver_IsToldAfterTheEnd of what the loop has left: of results that Redis has not
// acknowledged at once, and of a handler when it has returned.
func TestObserver_IsToldAfterTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Hour, "a", "b", "c")
		w := newWorker(q, 3, 0)
		w.Grace = time.Second
		w.handle = func(_ context.Context, task store.Task) error {
			if task.ID == "c" {
				time.Sleep(time.Minute)
			}
			return nil
		}
		q.onExchange = func(n int) fault {
			if n > 1 {
				return fault{request: time.Minute}
			}
			return fault{}
		}
		w.run(t)
		time.Sleep(time.Second)
		require.Equal(t, Unfinished{Running: 1, Unacknowledged: 2, Claims: 1}, *w.end())
		n, _ := w.told(Lost)
		require.EqualValues(t, 2, n)
		time.Sleep(2 * time.Minute)
		n, _ = w.told(Lost)
		require.EqualValues(t, 3, n)
		require.EqualValues(t, 3, w.Counters.Ended[Lost].Load())
	})
}

// TestObserver_IsToldOnceOfASecondCopy: the first copy of a result is accepted late, and the loop
// ends while the second is under way.
func TestObserver_IsToldOnceOfASecondCopy(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := newQueue(time.Hour, "a")
		w := newWorker(q, 1, 0)
		w.Grace = time.Millisecond
		q.onExchange = func(n int) fault {
			switch n {
			case 1:
				return fault{}
			case 2:
				return fault{reply: 8 * time.Second}
			}
			return fault{request: time.Minute}
		}
		w.run(t)
		time.Sleep(8500 * time.Millisecond)
		n, _ := w.told(Done)
		require.EqualValues(t, 1, n)
		require.Equal(t, 1, w.end().Unacknowledged, "the second copy")
		require.Equal(t, [5]int64{1}, w.counts())
		time.Sleep(2 * time.Minute)
	})
}

// TestObserver_ATakeoverIsARetry: what was to be buried, and has a waiting version, will be handed
// out.
func TestObserver_ATakeoverIsARetry(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		for answer, want := range map[store.Answer]Ending{store.Accepted: Buried, store.TookOver: Retried} {
			w := newWorker(newQueue(time.Minute), 1, 0)
			l := newLoop(t.Context(), w.config())
			d := &delivery{queue: l.queues[0], task: store.Task{ID: "a", Payload: []byte("p")}, disposition: store.Disposition{Action: store.Bury}, state: reporting}
			d.observed = &observed{ctx: w.Started(t.Context(), d.task)}
			l.settleDelivery(d, answer)
			n, _ := w.told(want)
			require.EqualValues(t, 1, n)
			l.close()
			w.check(t, w)
		}
	})
}
