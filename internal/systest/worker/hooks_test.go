package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// ledger counts what hooks are told of a worker's tasks.
type ledger struct {
	calls, twice atomic.Int64

	mu       sync.Mutex // guards what follows
	started  int64
	finished map[sluice.Disposition]int64
}

type callKey struct{}

func (l *ledger) hooks() sluice.QueueHooks {
	return sluice.QueueHooks{
		TaskStarted: func(ctx context.Context, _ sluice.TaskStarted) context.Context {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.started++
			return context.WithValue(ctx, callKey{}, new(atomic.Bool))
		},
		TaskFinished: func(ctx context.Context, i sluice.TaskFinished) {
			if told, ok := ctx.Value(callKey{}).(*atomic.Bool); !ok || told.Swap(true) {
				l.twice.Add(1)
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.finished[i.Disposition]++
		},
	}
}

// handle is a handler whose tasks come to different ends, and are finished in the end.
func (l *ledger) handle(ctx context.Context, _ sluice.Entry) error {
	l.calls.Add(1)
	time.Sleep(rand.N(20 * time.Millisecond)) // the work
	switch rand.N(6) {
	case 0:
		return errors.New("again")
	case 1:
		return sluice.Permanent(errors.New("never"))
	}
	return nil
}

// requireBalanced compares what the hooks were told with what was called and counted. What was
// never begun is released, lost or cancelled, and no hook is told of it.
func (l *ledger) requireBalanced(b systest.QueueTest, w *sluice.Worker) {
	b.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	s := w.Stats()
	b.Logf("%d calls, %+v, %v", l.calls.Load(), s, l.finished)
	require.Zero(b, l.twice.Load(), "told twice, or with another context")
	require.Equal(b, l.calls.Load(), l.started)
	var sum int64
	for _, n := range l.finished {
		sum += n
	}
	require.Equal(b, l.started, sum, "once for each call")
	require.Equal(b, s.Done, l.finished[sluice.DispositionDone])
	require.Equal(b, s.Retried, l.finished[sluice.DispositionRetried])
	require.Equal(b, s.Buried, l.finished[sluice.DispositionBuried])
	require.LessOrEqual(b, l.finished[sluice.DispositionCanceled], s.Canceled)
	require.LessOrEqual(b, l.finished[sluice.DispositionReleased], s.Released)
	require.LessOrEqual(b, l.finished[sluice.DispositionLost], s.Lost)
	require.Positive(b, s.Done*s.Retried*s.Buried, "this test shows too little")
}

// Connections break all the time. The hooks are told of each call of the handler once, and what
// they are told is what the worker counts.
func TestHooks_AreToldWhatIsCountedUnderRandomFaults(t *testing.T) {
	l := &ledger{finished: map[sluice.Disposition]int64{}}
	w := &sluice.Worker{Concurrency: 5, Lease: 400 * time.Millisecond, Handler: l.handle, Backoff: systest.After(time.Millisecond)}
	onFakeClock(t, w, func(f fixture) {
		f.start()
		randomFaults(f.QueueTest, f.faults, 10*time.Second)
		_ = f.stop()
		time.Sleep(time.Minute)
		l.requireBalanced(f.QueueTest, f.w)
	}, sluice.WithQueueHooks(l.hooks()))
}

func TestHooks_AreToldWhatIsCountedUnderRandomFaultsOnEveryBackend(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		b := systest.NewQueueTest(t, s.Client(t), redistest.Name(t))
		l := &ledger{finished: map[sluice.Disposition]int64{}}
		w := &sluice.Worker{
			Queue:       b.On(rdb, sluice.WithQueueHooks(l.hooks())),
			Concurrency: 5, Lease: 400 * time.Millisecond, Handler: l.handle, Backoff: systest.After(time.Millisecond),
		}
		stop := systest.StartWorker(t, w)
		randomFaults(b, faults, time.Second)
		_ = stop()
		l.requireBalanced(b, w)
	})
}
