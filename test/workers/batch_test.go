package workers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestBatch_EachTaskHasItsOwnEnd: done with a result, tried again, buried, put off.
func TestBatch_EachTaskHasItsOwnEnd(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		q := b.On(b.RDB, sluice.WithRetention(time.Hour))
		for _, id := range []string{"again", "bury", "done", "retry"} {
			_, err := q.Enqueue(b.Context(), sluice.Task{ID: id, Kind: "k"})
			require.NoError(b, err)
		}
		var mux sluice.Mux
		mux.Handle("k", sluice.Batch(4, time.Minute, func(ctx context.Context, es []sluice.Entry) []error {
			require.True(b, sluice.LeaseValid(ctx))
			require.ErrorIs(b, sluice.RecordResult(ctx, nil), sluice.ErrInvalid, "of which task?")
			errs := make([]error, len(es))
			for i, e := range es {
				require.NoError(b, sluice.RecordResult(sluice.BatchContext(ctx, i), []byte("result of "+e.ID)))
				switch e.ID {
				case "again":
					errs[i] = sluice.Again(time.Hour)
				case "bury":
					errs[i] = sluice.Permanent(errors.New("no"))
				case "retry":
					errs[i] = errors.New("no luck")
				}
			}
			return errs
		}))
		w := &sluice.Worker{Queue: q, Handler: mux.Serve, Backoff: func(int, error) time.Duration { return time.Hour }}
		stop := systest.StartWorker(b.T, w)
		b.Eventually(func() bool { s := w.Stats(); return s.Done+s.Again+s.Buried+s.Retried == 4 })
		require.NoError(b, stop())
		require.Equal(b, sluice.WorkerStats{Done: 1, Again: 1, Buried: 1, Retried: 1}, w.Stats())
		done, err := q.Get(b.Context(), "done")
		require.NoError(b, err)
		require.Equal(b, "result of done", string(done.Result))
		require.Equal(b, 1, b.Get("retry").Attempt)
		require.Equal(b, context.Background(), sluice.BatchContext(context.Background(), 0))
	})
}

// TestBatch_IsNoLargerThanTheWorker: a thousand handlers fill batches of a thousand; sixteen fill
// batches of sixteen, which do not wait for more.
func TestBatch_IsNoLargerThanTheWorker(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		for _, concurrency := range []int{16, 1000} {
			tasks := make([]sluice.Task, 4*concurrency)
			for i := range tasks {
				tasks[i].ID = fmt.Sprint(i)
			}
			_, err := b.Q.EnqueueBatch(b.Context(), tasks)
			require.NoError(b, err)
			var mu sync.Mutex
			var sizes []int
			w := &sluice.Worker{Queue: b.Q, Concurrency: concurrency, Handler: sluice.Batch(1000, time.Hour, func(_ context.Context, es []sluice.Entry) []error {
				mu.Lock()
				defer mu.Unlock()
				sizes = append(sizes, len(es))
				return make([]error, len(es))
			})}
			stop := systest.StartWorker(b.T, w)
			b.Eventually(func() bool { return w.Stats().Done == int64(len(tasks)) })
			require.NoError(b, stop())
			require.Equal(b, []int{concurrency, concurrency, concurrency, concurrency}, sizes)
		}
	})
}

// TestBatch_APanicFailsAll: the log has its stack once. So does a wrong number of errors.
func TestBatch_APanicFailsAll(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		log := &systest.Buffer{}
		for _, id := range []string{"a", "b", "c"} {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id})
		}
		calls := 0
		w := &sluice.Worker{
			Queue: b.Q, Logger: systest.LogTo(log), Backoff: func(int, error) time.Duration { return 0 },
			Handler: sluice.Batch(3, time.Hour, func(_ context.Context, es []sluice.Entry) []error {
				switch calls++; calls {
				case 1:
					panic("oh")
				case 2:
					return nil
				}
				return make([]error, len(es))
			}),
		}
		stop := systest.StartWorker(b.T, w)
		b.Eventually(func() bool { return w.Stats().Done == 3 })
		require.NoError(b, stop())
		require.Equal(b, sluice.WorkerStats{Done: 3, Retried: 6}, w.Stats())
		require.Equal(b, 1, log.Count("handler panicked"))
		require.Equal(b, 3, log.Count("panic: oh")-1)
		require.Equal(b, 3, log.Count("a batch of 3 has 0 errors"))
	})
}

// TestBatch_APanicWhileTheWorkerStopsFailsAll, as a handler's does: none is given back as if it had
// not been begun.
func TestBatch_APanicWhileTheWorkerStopsFailsAll(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		for i := range 3 {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: fmt.Sprint(i)})
		}
		begun := make(chan struct{})
		w := &sluice.Worker{Queue: b.Q, Grace: 50 * time.Millisecond, Handler: sluice.Batch(3, time.Hour, func(ctx context.Context, _ []sluice.Entry) []error {
			close(begun)
			<-ctx.Done()
			panic("oh")
		})}
		stop := systest.StartWorker(b.T, w)
		<-begun
		require.NoError(b, stop())
		require.Equal(b, sluice.WorkerStats{Retried: 3}, w.Stats())
	})
}

// TestBatch_ATaskThatIsCancelledEndsItsContext, with that cause; before the batch begins, the task
// is not in it.
func TestBatch_ATaskThatIsCancelledEndsItsContext(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		begun, causes := make(chan []sluice.Entry, 2), make(chan error, 2)
		w := &sluice.Worker{Queue: b.Q, Handler: sluice.Batch(2, time.Hour, func(ctx context.Context, es []sluice.Entry) []error {
			begun <- es
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return make([]error, len(es))
		})}
		stop := systest.StartWorker(b.T, w)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "waits"})
		b.Eventually(func() bool { return b.Stats().Leased == 1 })
		_, err := b.Q.Cancel(b.Context(), "waits")
		require.NoError(b, err)
		b.Eventually(func() bool { return w.Stats().Canceled == 1 })
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "b"})
		require.Len(b, <-begun, 2)
		_, err = b.Q.Cancel(b.Context(), "a")
		require.NoError(b, err)
		require.ErrorIs(b, <-causes, sluice.ErrCanceled)
		b.Eventually(func() bool { return w.Stats().Done == 1 && w.Stats().Canceled == 2 })
		require.NoError(b, stop())
	})
}

// TestBatch_Typed: what has no value is buried, and in no batch.
func TestBatch_Typed(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		views := sluice.Typed[int]{Queue: b.Q, Kind: "view"}
		var mux sluice.Mux
		got := make(chan []int, 1)
		mux.Handle("view", views.Batch(3, time.Hour, func(_ context.Context, es []sluice.Entry, vs []int) []error {
			require.Len(b, es, 3)
			got <- vs
			return make([]error, 3)
		}))
		for i := range 3 {
			_, err := views.Enqueue(b.Context(), sluice.Task{ID: fmt.Sprint(i)}, i)
			require.NoError(b, err)
		}
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "bad", Kind: "view", Payload: []byte("no number")})
		w := &sluice.Worker{Queue: b.Q, Handler: mux.Serve}
		stop := systest.StartWorker(b.T, w)
		require.ElementsMatch(b, []int{0, 1, 2}, <-got)
		b.Eventually(func() bool { return w.Stats().Done == 3 && w.Stats().Buried == 1 })
		require.NoError(b, stop())
	})
}

// TestBatch_PanicsWhereTheProgramIsWrong, as Mux.Handle does.
func TestBatch_PanicsWhereTheProgramIsWrong(t *testing.T) {
	f := func(context.Context, []sluice.Entry) []error { return nil }
	require.Panics(t, func() { sluice.Batch(0, time.Second, f) })
	require.Panics(t, func() { sluice.Batch(1, -1, f) })
	require.Panics(t, func() { sluice.Batch(1, time.Second, nil) })
	require.Panics(t, func() { sluice.Typed[int]{}.Batch(1, time.Second, nil) })
}
