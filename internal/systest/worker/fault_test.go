package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// A disposition is sent again with the same receipt when its reply was lost. It counts
// once, whether the first copy was carried out or not.
func TestWorker_CountsADispositionOnceWhenItsReplyIsLost(t *testing.T) {
	for name, disposition := range map[string]struct {
		err   error
		stats sluice.WorkerStats
	}{
		"done":    {nil, sluice.WorkerStats{Done: 1}},
		"retried": {errors.New("again"), sluice.WorkerStats{Retried: 1}},
		"buried":  {sluice.Permanent(errors.New("no")), sluice.WorkerStats{Buried: 1}},
	} {
		for what, strike := range map[string]func(f *redistest.Faults){
			"reply":   func(f *redistest.Faults) { f.DropReply(1) },
			"request": func(f *redistest.Faults) { f.DropRequest(1) },
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				eachFaulty(t, func(b systest.QueueTest, q *sluice.Queue, faults *redistest.Faults) {
					b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("p")})
					w := &sluice.Worker{Queue: q, Concurrency: 1, Lease: time.Minute, Backoff: systest.After(time.Hour),
						Handler: func(context.Context, sluice.Entry) error { strike(faults); return disposition.err }}
					stop := systest.StartWorker(b.T, w)
					b.Eventually(func() bool { s := w.Stats(); return s.Done+s.Retried+s.Buried+s.Lost > 0 })
					require.NoError(b, stop())
					require.Equal(b, disposition.stats, w.Stats())
					switch s := b.Stats(); name {
					case "done":
						b.RequireClean()
					case "retried":
						require.Equal(b, int64(1), s.Scheduled)
						require.Equal(b, 1, b.Get("a").Attempt)
					case "buried":
						require.Equal(b, int64(1), s.Dead)
					}
				})
			})
		}
	}
}

// eachFaulty runs a test on every backend, with a queue whose connections may have
// faults, and the same queue on connections without. The server knows the scripts.
func eachFaulty(t *testing.T, test func(b systest.QueueTest, q *sluice.Queue, faults *redistest.Faults), opts ...sluice.QueueOption) {
	t.Helper()
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		b := systest.NewQueueTest(t, s.Client(t), redistest.Name(t))
		systest.WarmQueue(t, b.Q)
		t.Cleanup(faults.Resume)
		test(b, b.On(rdb, append(opts, sluice.WithPollInterval(time.Minute))...), faults)
	})
}

// An extension that is lost, or whose reply is, is repeated. It does not change the receipt,
// so that it costs nothing.
func TestWorker_RepeatsAnExtension(t *testing.T) {
	const lease = 9 * time.Second
	for name, lose := range map[string]func(f *redistest.Faults){
		"request": func(f *redistest.Faults) { f.DropRequest(1) },
		"reply":   func(f *redistest.Faults) { f.DropReply(1) },
	} {
		t.Run(name, func(t *testing.T) {
			onGatedWorker(t, lease, func(f gated) {
				lose(f.faults)
				time.Sleep(2 * lease) // the handler's work
				require.Empty(f, f.causes)
				f.gate <- nil
				time.Sleep(time.Second)
				require.Equal(f, sluice.WorkerStats{Done: 1}, f.w.Stats())
				f.RequireClean()
			})
		})
	}
}

// The replies to an extension and to the disposition after it are lost. The disposition is
// sent again, and counts once.
func TestWorker_CountsADispositionAfterALostExtension(t *testing.T) {
	onGatedWorker(t, 3*time.Second, func(f gated) {
		leased := func() float64 { return f.RDB.ZScore(f.Context(), f.Key, "a").Val() }
		first := leased()
		f.faults.DropReply(1)
		f.Eventually(func() bool { return leased() != first })
		f.faults.DropReply(1)
		f.gate <- nil
		time.Sleep(time.Second)
		require.Equal(f, sluice.WorkerStats{Done: 1}, f.w.Stats())
		f.RequireClean()
	})
}

// A handler returns while the lease of its task is being extended. The disposition does not
// wait, and the extension, which comes to the server after it, takes nothing away.
func TestWorker_DispositionDoesNotWaitForAnExtension(t *testing.T) {
	onGatedWorker(t, 3*time.Second, func(f gated) {
		f.warm()
		before := f.faults.Scripts()
		f.faults.HoldRequest(1)
		f.Eventually(func() bool { return f.faults.Scripts() > before }) // the extension
		f.gate <- nil
		time.Sleep(100 * time.Millisecond)
		require.Equal(f, sluice.WorkerStats{Done: 1}, f.w.Stats())
		require.Equal(f, 1, f.faults.Deliver())
		time.Sleep(time.Second)
		require.Equal(f, sluice.WorkerStats{Done: 1}, f.w.Stats())
		f.RequireClean()
	})
}

// The lease ends while its extension is under way, and then the handler returns. The
// worker counts right, and so comes to rest at once when it is stopped.
func TestWorker_LeaseMayEndDuringItsExtension(t *testing.T) {
	onGatedWorker(t, 200*time.Millisecond, func(f gated) {
		f.faults.Stall()
		require.ErrorIs(f, <-f.causes, sluice.ErrLost)
		synctest.Wait() // the handler's result has been collected
		f.faults.Resume()
		f.gate <- nil // of the second attempt
		time.Sleep(50 * time.Millisecond)
		require.Equal(f, sluice.WorkerStats{Done: 1, Lost: 1}, f.w.Stats())
		stopped := time.Now()
		require.NoError(f, f.stop())
		require.Zero(f, time.Since(stopped))
		f.RequireClean()
	})
}

// The server accepts commands and does not answer. The handler learns before the lease
// can end on the server, and the worker goes on afterwards.
func TestWorker_HandlerLearnsBeforeTheLeaseEnds(t *testing.T) {
	onGatedWorker(t, time.Second, func(f gated) {
		ends := f.Get("a").LeaseEnds
		f.faults.Stall()
		require.ErrorIs(f, <-f.causes, sluice.ErrLost)
		require.InDelta(f, 12*time.Millisecond, time.Until(ends), float64(time.Millisecond), "1% and 2ms before")
		f.faults.Resume()
		f.gate <- nil // of the second attempt
		time.Sleep(time.Second)
		require.Equal(f, sluice.WorkerStats{Done: 1, Lost: 1}, f.w.Stats())
	})
}

// The connections that the worker has are dead, and no error says so. It reports its
// result over others, before go-redis gives the dead ones up.
func TestWorker_ReportsOverOtherConnectionsWhenItsOwnAreDead(t *testing.T) {
	onGatedWorker(t, 3*time.Second, func(f gated) {
		f.faults.Cut()
		returned := time.Now()
		f.gate <- nil
		f.Eventually(func() bool { s := f.w.Stats(); return s.Done+s.Lost > 0 })
		require.Equal(f, sluice.WorkerStats{Done: 1}, f.w.Stats())
		require.Less(f, time.Since(returned), 3*time.Second)
		f.RequireClean()
	})
}

// Connections break all the time. Every task is done, and each handler's result counts
// once.
func TestWorker_CountsEveryTaskUnderRandomFaults(t *testing.T) {
	w, calls := countingWorker(400 * time.Millisecond)
	onFakeClock(t, w, func(f fixture) {
		f.start()
		randomFaults(f.QueueTest, f.faults, 10*time.Second)
		_ = f.stop()
		requireCounted(f.QueueTest, f.w.Stats(), calls.Load())
		require.Equal(f, calls.Load(), f.w.Stats().Done+f.w.Stats().Lost)
	})
}

// On a real server and a busy machine, a claim may be answered after its lease: such a
// lease counts as lost, and no handler is called.
func TestWorker_CountsEveryTaskUnderRandomFaultsOnEveryBackend(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		b := systest.NewQueueTest(t, s.Client(t), redistest.Name(t))
		w, calls := countingWorker(400 * time.Millisecond)
		w.Queue = b.On(rdb)
		stop := systest.StartWorker(t, w)
		randomFaults(b, faults, time.Second)
		_ = stop()
		t.Logf("%d calls, %+v", calls.Load(), w.Stats())
		requireCounted(b, w.Stats(), calls.Load())
	})
}

const faultyTasks = 60

func countingWorker(lease time.Duration) (*sluice.Worker, *atomic.Int64) {
	calls := &atomic.Int64{}
	return &sluice.Worker{Concurrency: 5, Lease: lease, Handler: func(context.Context, sluice.Entry) error {
		calls.Add(1)
		time.Sleep(rand.N(20 * time.Millisecond)) // the work
		return nil
	}}, calls
}

// randomFaults enqueues tasks, breaks connections for that long, and waits until the
// tasks are done.
func randomFaults(b systest.QueueTest, faults *redistest.Faults, long time.Duration) {
	b.Helper()
	for i := range faultyTasks {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: fmt.Sprint(i), Delay: rand.N(long * 4 / 5)})
	}
	for end := time.Now().Add(long); time.Now().Before(end); {
		if rand.N(2) == 0 {
			faults.DropReply(1 + rand.N(3))
		} else {
			faults.DropRequest(1 + rand.N(3))
		}
		time.Sleep(rand.N(20 * time.Millisecond)) // so that the faults strike at any time
	}
	b.RequireDrained()
}

func requireCounted(b systest.QueueTest, stats sluice.WorkerStats, calls int64) {
	b.Helper()
	require.LessOrEqual(b, stats.Done, int64(faultyTasks))
	require.GreaterOrEqual(b, stats.Done+stats.Lost, int64(faultyTasks))
	require.LessOrEqual(b, stats.Done, calls)
	require.LessOrEqual(b, calls, stats.Done+stats.Lost, "a result was not counted")
}
