package worker

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// fixture is a worker on the fake clock, on connections that may have faults, and its
// queue on connections without.
type fixture struct {
	systest.QueueTest
	server *miniredis.Miniredis
	faults *redistest.Faults
	client redis.UniversalClient // of the worker
	w      *sluice.Worker
	start  func()
	cancel context.CancelFunc // ends Run's context
	result <-chan error       // what Run returned
}

// onFakeClock runs a test in a bubble. The worker is a copy of w, with a queue. The test
// starts it; it has ended when the test returns.
func onFakeClock(t *testing.T, w *sluice.Worker, test func(f fixture), opts ...sluice.QueueOption) {
	t.Helper()
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		faults := redistest.NewFaults(systest.BubbleDialer(m))
		client := systest.BubbleClient(t, faults.Dial)
		b := systest.NewQueueTest(t, rdb, "q")
		ctx, cancel := context.WithCancel(context.Background())
		result := make(chan error, 1)
		f := fixture{
			QueueTest: b, server: m, faults: faults, client: client,
			w: &sluice.Worker{Queue: b.On(client, opts...), Handler: w.Handler, Concurrency: w.Concurrency, Lease: w.Lease,
				Timeout: w.Timeout, Backoff: w.Backoff, Grace: w.Grace, Logger: w.Logger},
			cancel: cancel, result: result,
		}
		f.start = func() { go func() { result <- f.w.Run(ctx) }() }
		systest.WarmQueue(t, f.Q)
		defer func() {
			cancel()
			m.SetError("")
			faults.Delay(0)
			faults.Resume()
			time.Sleep(time.Minute) // so that what lingers has ended
			require.NoError(t, client.Close())
		}()
		test(f)
	})
}

// stop ends the worker, and returns what Run returned.
func (f fixture) stop() error {
	f.cancel()
	return <-f.result
}

// add enqueues tasks that are due now.
func (f fixture) add(ids ...string) {
	f.Helper()
	for _, id := range ids {
		f.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id, Payload: []byte("p")})
	}
}

// warm opens the connections that a worker needs. To open one takes several replies,
// which tests that delay replies do not mean.
func (f fixture) warm() {
	f.Helper()
	f.faults.Delay(time.Millisecond) // so that none is free for the next
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			if _, err := f.client.Pipelined(f.Context(), func(p redis.Pipeliner) error { return p.Type(f.Context(), "x").Err() }); err != nil {
				f.Error(err)
			}
		})
	}
	all.Wait()
	f.faults.Delay(0)
}

// gated is a fixture whose worker has one runner, and has begun the task "a". The
// handler waits for the gate.
type gated struct {
	fixture
	gate   chan error // what the handler returns
	begun  chan string
	causes chan error // of handlers' contexts that have ended
}

func onGatedWorker(t *testing.T, lease time.Duration, test func(f gated)) {
	t.Helper()
	g := gated{}
	w := &sluice.Worker{Concurrency: 1, Lease: lease, Backoff: systest.After(time.Hour),
		Handler: func(ctx context.Context, e sluice.Entry) error {
			g.begun <- e.ID
			select {
			case err := <-g.gate:
				return err
			case <-ctx.Done():
				g.causes <- context.Cause(ctx)
				return ctx.Err()
			}
		}}
	onFakeClock(t, w, func(f fixture) {
		g = gated{fixture: f, gate: make(chan error), begun: make(chan string, 10), causes: make(chan error, 10)}
		g.add("a")
		g.start()
		<-g.begun
		test(g)
	}, sluice.WithPollInterval(time.Minute))
}
