package workers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

type spanKey struct{}

// stuckTold is what the hooks of a queue were told of stuck handlers.
type stuckTold struct {
	mu       sync.Mutex // guards what follows
	stuck    []sluice.TaskStuck
	finished []sluice.TaskFinished
	span     []any // that the contexts of stuck ones had
}

func (s *stuckTold) hooks() sluice.QueueHooks {
	return sluice.QueueHooks{
		TaskStarted: func(ctx context.Context, i sluice.TaskStarted) context.Context {
			return context.WithValue(ctx, spanKey{}, i.Entry.ID)
		},
		TaskFinished: func(_ context.Context, i sluice.TaskFinished) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.finished = append(s.finished, i)
		},
		TaskStuck: func(ctx context.Context, i sluice.TaskStuck) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.stuck, s.span = append(s.stuck, i), append(s.span, ctx.Value(spanKey{}))
		},
	}
}

// TestWorker_StuckHandlerLosesItsTask, Grace after Timeout: by default, of the Worker's, or of the
// task's kind. Hook, log and Stats tell, another worker has the task a lease later, and what the
// handler returns has no effect.
func TestWorker_StuckHandlerLosesItsTask(t *testing.T) {
	for name, test := range map[string]struct {
		timeout, grace, kind, after time.Duration
		result                      error
	}{
		"default":         {after: 30*time.Minute + 10*time.Second},
		"permanent":       {timeout: 5 * time.Minute, after: 5*time.Minute + 10*time.Second, result: sluice.Permanent(errors.New("no"))},
		"again":           {timeout: time.Minute, grace: 10 * time.Minute, after: 11 * time.Minute, result: sluice.Again(time.Hour)},
		"of its kind":     {kind: time.Minute, after: 70 * time.Second},
		"kind is longer":  {timeout: time.Minute, kind: time.Hour, after: 70 * time.Second},
		"kind alone":      {timeout: -1, kind: 20 * time.Second, grace: time.Second, after: 21 * time.Second, result: errors.New("failed")},
		"kind is shorter": {timeout: -1, kind: 2 * time.Second, grace: time.Second, after: 10 * time.Second}, // a third of the lease
	} {
		t.Run(name, func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
				told, log := &stuckTold{}, &systest.Buffer{}
				harmful := sluice.QueueHooks{TaskStuck: func(context.Context, sluice.TaskStuck) { panic("no") }}
				b := systest.NewQueueTest(t, rdb, redistest.Name(t), sluice.WithQueueHooks(harmful), sluice.WithQueueHooks(told.hooks()), sluice.WithPollInterval(time.Minute))
				contexts, release := make(chan context.Context, 9), make(chan struct{})
				free := sync.OnceFunc(func() { close(release) })
				defer free()
				var mux sluice.Mux
				mux.Handle("hangs", func(ctx context.Context, _ sluice.Entry) error {
					contexts <- ctx
					<-release
					return test.result
				}, sluice.KindTimeout(test.kind))
				w := &sluice.Worker{Queue: b.Q, Handler: mux.Serve, Timeout: test.timeout, Grace: test.grace, Logger: systest.LogTo(log)}
				b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Kind: "hangs", Payload: []byte("s3cret")})
				stop := systest.StartWorker(t, w)
				ctx := <-contexts
				time.Sleep(test.after - 1)
				require.Equal(t, sluice.WorkerStats{Running: 1}, w.Stats())
				require.True(t, sluice.LeaseValid(ctx))
				synctest.Wait()
				require.Empty(t, told.stuck)
				stopped := make(chan error, 1)
				go func() { stopped <- stop() }() // so that it does not have the task again
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				require.Equal(t, sluice.WorkerStats{Running: 1, Stuck: 1, Lost: 1}, w.Stats())
				require.ErrorIs(t, context.Cause(ctx), context.DeadlineExceeded)
				require.False(t, sluice.LeaseValid(ctx))
				require.Len(t, told.stuck, 1)
				require.Equal(t, "a", told.stuck[0].Entry.ID)
				require.Equal(t, "s3cret", string(told.stuck[0].Entry.Payload))
				require.Equal(t, sluice.TaskStuck{Queue: b.Q.Name(), Entry: told.stuck[0].Entry, Running: test.after}, told.stuck[0])
				require.Equal(t, []any{"a"}, told.span)
				require.Equal(t, 1, log.Count(`level=WARN msg="sluice: handler is stuck"`))
				require.Equal(t, 1, log.Count(fmt.Sprintf(" task=a attempt=1 running=%v", test.after)))

				other := &sluice.Worker{Queue: b.Q, Handler: func(context.Context, sluice.Entry) error { return nil }}
				stopOther := systest.StartWorker(t, other)
				time.Sleep(31 * time.Second)
				synctest.Wait()
				require.EqualValues(t, 1, other.Stats().Done)
				if test.grace < 10*time.Minute {
					var unfinished *sluice.UnfinishedError
					require.ErrorAs(t, <-stopped, &unfinished)
					require.Equal(t, sluice.UnfinishedError{Running: 1}, *unfinished)
				}
				require.Empty(t, told.finished[1:])
				free()
				time.Sleep(time.Minute)
				if test.grace == 10*time.Minute {
					require.NoError(t, <-stopped)
				}
				synctest.Wait()
				require.Equal(t, sluice.WorkerStats{Lost: 1}, w.Stats())
				require.Len(t, told.stuck, 1)
				require.Len(t, told.finished, 2)
				require.Equal(t, sluice.DispositionLost, told.finished[1].Disposition)
				require.Equal(t, test.after+31*time.Second, told.finished[1].Took)
				require.Equal(t, test.result, told.finished[1].Err)
				require.NotContains(t, log.String(), "s3cret")
				left := b.Stats()
				require.Zero(t, left.Due+left.Scheduled+left.Leased+left.Dead)
				require.NoError(t, stopOther())
				time.Sleep(time.Minute)
			})
		})
	}
}

// TestWorker_WithoutTimeoutNoHandlerIsStuck.
func TestWorker_WithoutTimeoutNoHandlerIsStuck(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		b := systest.NewQueueTest(t, rdb, redistest.Name(t), sluice.WithPollInterval(time.Minute))
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		w := &sluice.Worker{Queue: b.Q, Timeout: -1, Handler: func(ctx context.Context, _ sluice.Entry) error {
			_, ok := ctx.Deadline()
			require.False(t, ok)
			time.Sleep(2 * time.Hour)
			return ctx.Err()
		}}
		stop := systest.StartWorker(t, w)
		time.Sleep(time.Hour)
		require.Equal(t, sluice.WorkerStats{Running: 1}, w.Stats())
		time.Sleep(time.Hour + time.Second)
		require.NoError(t, stop())
		require.Equal(t, sluice.WorkerStats{Done: 1}, w.Stats())
		time.Sleep(time.Minute)
	})
}

// TestPool_StuckHandlersTakeNoPlaces of the other queues: those of one with its own Concurrency
// keep no more than that. UnfinishedError counts them.
func TestPool_StuckHandlersTakeNoPlaces(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		queues := poolQueues(t, rdb, 2, 100)
		release := make(chan struct{})
		free := sync.OnceFunc(func() { close(release) })
		defer free()
		hanging := &sluice.Worker{Queue: queues[0], Concurrency: 2, Timeout: time.Minute, Lease: time.Hour, Handler: func(context.Context, sluice.Entry) error {
			<-release
			return nil
		}}
		working := &sluice.Worker{Queue: queues[1], Lease: time.Hour, Handler: func(context.Context, sluice.Entry) error {
			time.Sleep(time.Minute)
			return nil
		}}
		p := &sluice.Pool{Workers: []*sluice.Worker{hanging, working}, Concurrency: 5}
		stop := runPool(t, p)
		time.Sleep(30 * time.Second)
		require.LessOrEqual(t, hanging.Stats().Running, int64(2))
		time.Sleep(10*time.Minute + 15*time.Second)
		require.Equal(t, sluice.WorkerStats{Running: 4, Stuck: 4, Lost: 4}, hanging.Stats(), "two of them are replaced")
		require.EqualValues(t, 3, working.Stats().Running)
		require.NoError(t, hanging.SetConcurrency(3)) // one more is replaced, so there is room for two
		time.Sleep(10 * time.Minute)
		require.Equal(t, sluice.WorkerStats{Running: 6, Stuck: 6, Lost: 6}, hanging.Stats())
		require.EqualValues(t, 2, working.Stats().Running)
		var unfinished *sluice.UnfinishedError
		require.ErrorAs(t, stop(), &unfinished)
		require.GreaterOrEqual(t, unfinished.Running, 6)
		free()
		time.Sleep(2 * time.Minute)
		require.Equal(t, sluice.WorkerStats{Lost: 6}, hanging.Stats())
	})
}

// TestWorker_WhatAStuckPeriodicReturnsAtLastDecidesNothing: neither before the occurrence is handed
// out again nor after.
func TestWorker_WhatAStuckPeriodicReturnsAtLastDecidesNothing(t *testing.T) {
	for name, first := range map[string]time.Duration{"before": 35 * time.Second, "after": 46 * time.Second} {
		t.Run(name, func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
				q, err := sluice.NewQueue(rdb, "q", sluice.WithPollInterval(time.Minute))
				require.NoError(t, err)
				var calls atomic.Int64
				w := &sluice.Worker{
					Queue: q, Timeout: 10 * time.Second, Grace: time.Second, Lease: 30 * time.Second, Backoff: systest.After(20 * time.Minute),
					Periodic: []sluice.Periodic{{ID: "p", Schedule: sluice.Every(time.Hour)}},
					Handler: func(context.Context, sluice.Entry) error {
						if calls.Add(1) == 1 {
							time.Sleep(first)
							return nil
						}
						time.Sleep(9 * time.Second)
						return errors.New("the second has failed")
					},
				}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- w.Run(ctx) }()
				time.Sleep(time.Hour + 2*time.Minute)
				require.EqualValues(t, 2, calls.Load())
				stats, err := q.Stats(t.Context())
				require.NoError(t, err)
				require.Equal(t, []int64{0, 1, 1}, []int64{stats.Finished, stats.Retried, stats.Lost})
				task, err := q.Get(t.Context(), "p")
				require.NoError(t, err)
				require.Equal(t, "the second has failed", task.Reason)
				stop()
				require.NoError(t, <-ended)
				time.Sleep(time.Minute) // the library's goroutines end
			})
		})
	}
}
