package queues

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// limited is a fleet of workers in a bubble, each a client for itself.
type limited struct {
	mu      sync.Mutex
	starts  []time.Time
	running int
	most    int
}

// begun returns when tasks began so far.
func (l *limited) begun() []time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.starts)
}

func (l *limited) handle(took time.Duration) sluice.Handler {
	return func(context.Context, sluice.Entry) error {
		l.mu.Lock()
		l.starts = append(l.starts, time.Now())
		l.running++
		l.most = max(l.most, l.running)
		l.mu.Unlock()
		time.Sleep(took)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.running--
		return nil
	}
}

func runLimited(t *testing.T, limits sluice.Limits, workers, concurrency, tasks int, took time.Duration) (starts []time.Time, most int, scripts int) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q", sluice.WithPollInterval(time.Hour))
		require.NoError(t, err)
		require.NoError(t, q.SetLimits(t.Context(), limits))
		var l limited
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range workers {
			own := systest.BubbleClient(t, systest.BubbleDialer(m))
			q, err := sluice.NewQueue(own, "q", sluice.WithPollInterval(time.Hour))
			require.NoError(t, err)
			w := &sluice.Worker{Queue: q, Concurrency: concurrency, Handler: l.handle(took)}
			all.Go(func() { require.NoError(t, w.Run(ctx)) })
		}
		time.Sleep(time.Second)
		batch := make([]sluice.Task, tasks)
		for i := range batch {
			batch[i].ID = fmt.Sprint(i)
		}
		before := m.CommandCount()
		_, err = q.EnqueueBatch(t.Context(), batch)
		require.NoError(t, err)
		for {
			time.Sleep(time.Second)
			s, err := q.Stats(t.Context())
			require.NoError(t, err)
			if s.Due+s.Leased == 0 {
				break
			}
		}
		scripts = m.CommandCount() - before
		stop()
		all.Wait()
		starts, most = l.starts, l.most
		time.Sleep(time.Minute)
	})
	return starts, most, scripts
}

// TestLimits_WorkersAreToldWhenTheNextMayGo, without a poll: a poll interval is an hour here.
func TestLimits_WorkersAreToldWhenTheNextMayGo(t *testing.T) {
	for _, workers := range []int{1, 5} {
		t.Run(fmt.Sprint("rate", workers), func(t *testing.T) {
			starts, _, _ := runLimited(t, sluice.Limits{Rate: 10, Burst: 2}, workers, 2, 42, time.Millisecond)
			require.Len(t, starts, 42)
			for i := range starts {
				if i >= 12 {
					require.GreaterOrEqual(t, starts[i].Sub(starts[i-12]), time.Second-time.Millisecond)
				}
			}
			require.InDelta(t, 4*time.Second, starts[41].Sub(starts[0]), float64(200*time.Millisecond), "two at once, and forty in four seconds")
		})
		t.Run(fmt.Sprint("running", workers), func(t *testing.T) {
			starts, most, _ := runLimited(t, sluice.Limits{Running: 3}, workers, 4, 30, time.Second)
			require.Len(t, starts, 30)
			require.Equal(t, 3, most)
			require.InDelta(t, 9*time.Second, starts[29].Sub(starts[0]), float64(100*time.Millisecond))
		})
		t.Run(fmt.Sprint("both", workers), func(t *testing.T) {
			starts, most, _ := runLimited(t, sluice.Limits{Running: 3, Rate: 2}, workers, 4, 10, time.Second)
			require.LessOrEqual(t, most, 3)
			require.InDelta(t, 4500*time.Millisecond, starts[9].Sub(starts[0]), float64(100*time.Millisecond))
		})
	}
}

// TestLimits_APopLoopIsOnTime: it is told when the next may go, too.
func TestLimits_APopLoopIsOnTime(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q", sluice.WithPollInterval(time.Hour))
		require.NoError(t, err)
		require.NoError(t, q.SetLimits(t.Context(), sluice.Limits{Rate: 100, Burst: 2}))
		batch := make([]sluice.Task, 100)
		for i := range batch {
			batch[i].ID = fmt.Sprint(i)
		}
		_, err = q.EnqueueBatch(t.Context(), batch)
		require.NoError(t, err)
		began, popped, rounds := time.Now(), 0, 0
		for ; popped < len(batch); rounds++ {
			require.NoError(t, q.Wait(t.Context()))
			es, err := q.Pop(t.Context(), 10)
			require.NoError(t, err)
			popped += len(es)
		}
		require.InDelta(t, 980*time.Millisecond, time.Since(began), float64(20*time.Millisecond))
		require.LessOrEqual(t, rounds, 105)
		time.Sleep(time.Minute)
	})
}

// TestLimits_WhatLetsTheNextGoTellsAWorker that was refused by a full queue. A poll interval is an
// hour here, and a lease longer.
func TestLimits_WhatLetsTheNextGoTellsAWorker(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context, q *sluice.Queue, e sluice.Entry) error{
		"Dequeue": func(ctx context.Context, q *sluice.Queue, e sluice.Entry) error { return q.Dequeue(ctx, e) },
		"Retry": func(ctx context.Context, q *sluice.Queue, e sluice.Entry) error {
			return q.Retry(ctx, time.Hour, "", e)
		},
		"Release": func(ctx context.Context, q *sluice.Queue, e sluice.Entry) error { return q.Release(ctx, e) },
		"Bury":    func(ctx context.Context, q *sluice.Queue, e sluice.Entry) error { return q.Bury(ctx, "", e) },
		"Cancel": func(ctx context.Context, q *sluice.Queue, e sluice.Entry) error {
			_, err := q.Cancel(ctx, e.ID)
			return err
		},
		"more running": func(ctx context.Context, q *sluice.Queue, _ sluice.Entry) error {
			return q.SetLimits(ctx, sluice.Limits{Running: 2})
		},
		"no limits": func(ctx context.Context, q *sluice.Queue, _ sluice.Entry) error {
			return q.SetLimits(ctx, sluice.Limits{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
				q, err := sluice.NewQueue(rdb, "q", sluice.WithPollInterval(time.Hour))
				require.NoError(t, err)
				enqueueMany(systest.QueueTest{T: t, Q: q, RDB: rdb}, 0, 2)
				require.NoError(t, q.SetLimits(t.Context(), sluice.Limits{Running: 1}))
				es, err := q.Claim(t.Context(), 2, 2*time.Hour)
				require.NoError(t, err)
				require.Len(t, es, 1)
				own, err := sluice.NewQueue(systest.BubbleClient(t, systest.BubbleDialer(m)), "q", sluice.WithPollInterval(time.Hour))
				require.NoError(t, err)
				var l limited
				ctx, stop := context.WithCancel(t.Context())
				var all sync.WaitGroup
				w := &sluice.Worker{Queue: own, Handler: l.handle(time.Millisecond)}
				all.Go(func() { require.NoError(t, w.Run(ctx)) })
				time.Sleep(time.Minute)
				require.Empty(t, l.begun())
				began := time.Now()
				require.NoError(t, end(ctx, q, es[0]))
				time.Sleep(10 * time.Millisecond)
				require.NotEmpty(t, l.begun())
				require.Less(t, l.begun()[0].Sub(began), 5*time.Millisecond)
				stop()
				all.Wait()
				time.Sleep(time.Minute)
			})
		})
	}
}

// TestLimits_ARefusedClaimTellsTheWatchman, who waits for a later head, when the next task may go:
// a worker that was told of the task, and was refused, does not see to it. A poll interval is an
// hour here.
func TestLimits_ARefusedClaimTellsTheWatchman(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q", sluice.WithPollInterval(time.Hour))
		require.NoError(t, err)
		b := systest.QueueTest{T: t, Q: q, RDB: rdb}
		enqueueMany(b, 0, 1)
		require.NoError(t, q.SetLimits(t.Context(), sluice.Limits{Rate: 1, Per: time.Minute}))
		require.Len(t, pop(b, 1), 1)
		began := time.Now()
		var l limited
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 2 {
			own, err := sluice.NewQueue(systest.BubbleClient(t, systest.BubbleDialer(m)), "q", sluice.WithPollInterval(time.Hour))
			require.NoError(t, err)
			w := &sluice.Worker{Queue: own, Handler: l.handle(time.Millisecond)}
			all.Go(func() { require.NoError(t, w.Run(ctx)) })
		}
		time.Sleep(time.Second)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "later", Delay: 5 * time.Minute})
		time.Sleep(time.Second)
		enqueueMany(b, 0, 1)
		time.Sleep(10 * time.Minute)
		stop()
		all.Wait()
		require.Len(t, l.starts, 2)
		require.InDelta(t, 60, l.starts[0].Sub(began).Seconds(), 0.1)
		require.InDelta(t, 301, l.starts[1].Sub(began).Seconds(), 0.1)
		time.Sleep(time.Minute)
	})
}

// TestLimits_WaitReturnsWhenATaskMayGo, not while limits keep it: a queue that is looked at alone,
// or together with others of the client.
func TestLimits_WaitReturnsWhenATaskMayGo(t *testing.T) {
	for _, poll := range []time.Duration{time.Hour, time.Second} {
		t.Run(poll.String(), func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
				ctx, stop := context.WithCancel(t.Context())
				var all sync.WaitGroup
				for _, name := range []string{"b", "c"} {
					q, err := sluice.NewQueue(rdb, name, sluice.WithPollInterval(poll))
					require.NoError(t, err)
					all.Go(func() { _ = q.Wait(ctx) })
				}
				q, err := sluice.NewQueue(rdb, "q", sluice.WithPollInterval(poll))
				require.NoError(t, err)
				b := systest.QueueTest{T: t, Q: q, RDB: rdb}
				enqueueMany(b, 0, 2)
				require.NoError(t, q.SetLimits(ctx, sluice.Limits{Rate: 1, Per: time.Minute}))
				require.Len(t, pop(b, 2), 1)
				began := time.Now()
				require.NoError(t, q.Wait(ctx))
				require.InDelta(t, 60, time.Since(began).Seconds(), 0.1)
				require.Len(t, pop(b, 2), 1)
				stop()
				all.Wait()
				time.Sleep(time.Minute)
			})
		})
	}
}

// TestLimits_AFinishThatClaimsTellsOfTheHead: an idle client, refused by a full queue, expects the
// end of a lease, and a worker finishes its task with a claim that brings none, before another task
// is due. A poll interval is an hour here.
func TestLimits_AFinishThatClaimsTellsOfTheHead(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		var l limited
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		worker := func(took time.Duration) *sluice.Queue {
			q, err := sluice.NewQueue(systest.BubbleClient(t, systest.BubbleDialer(m)), "q", sluice.WithPollInterval(time.Hour))
			require.NoError(t, err)
			w := &sluice.Worker{Queue: q, Concurrency: 1, Handler: l.handle(took)}
			all.Go(func() { require.NoError(t, w.Run(ctx)) })
			time.Sleep(time.Second)
			return q
		}
		q := worker(10 * time.Second)
		require.NoError(t, q.SetLimits(ctx, sluice.Limits{Running: 1}))
		_, err := q.Enqueue(ctx, sluice.Task{ID: "a"})
		require.NoError(t, err)
		began := time.Now()
		time.Sleep(time.Second)
		_, err = q.Enqueue(ctx, sluice.Task{ID: "b", Delay: 14 * time.Second})
		require.NoError(t, err)
		worker(time.Second)
		time.Sleep(time.Minute)
		stop()
		all.Wait()
		require.Len(t, l.starts, 2)
		require.InDelta(t, 15, l.starts[1].Sub(began).Seconds(), 0.1)
		time.Sleep(time.Minute)
	})
}
