package sluice_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

func enqueueMany(b systest.QueueTest, from, to int) {
	for i := from; i < to; i++ {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: fmt.Sprint(i)})
	}
}

func pop(b systest.QueueTest, n int) []string {
	es, err := b.Q.Pop(b.Context(), n)
	require.NoError(b, err)
	return systest.IDs(es)
}

// TestLimits_Running: live leases count, whatever ends them.
func TestLimits_Running(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		limits := sluice.Limits{Running: 3}
		require.NoError(b, b.Q.SetLimits(ctx, limits))
		enqueueMany(b, 0, 9)
		es := b.Claim(10, time.Hour)
		require.Equal(b, []string{"0", "1", "2"}, systest.IDs(es))
		require.Empty(b, b.Claim(10, time.Hour))
		require.Empty(b, pop(b, 1))
		stats := b.Stats()
		require.Equal(b, limits, stats.Limits)
		require.EqualValues(b, 6, stats.Due)
		require.False(b, stats.Paused)

		ends := []func() error{
			func() error { return b.Q.Dequeue(ctx, es[0]) },
			func() error { return b.Q.Retry(ctx, es[0], time.Hour, "busy") },
			func() error { return b.Q.Bury(ctx, es[0], "broken") },
			func() error { _, err := b.Q.Cancel(ctx, es[0].ID); return err },
		}
		for _, end := range ends {
			require.NoError(b, end())
			more := b.Claim(10, time.Hour)
			require.Len(b, more, 1)
			es = append(es[1:], more...)
		}
		b.EndLeaseSoon(es[0])
		b.Eventually(func() bool { return len(b.Claim(10, time.Hour)) == 1 }) // the same one or another
		require.Empty(b, b.Claim(1, time.Hour))

		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{Running: 1}))
		require.NoError(b, b.Q.Release(ctx, es[1]))
		require.Empty(b, b.Claim(10, time.Hour), "there are two")
		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{Running: 4}))
		require.Len(b, b.Claim(10, time.Hour), 2)
		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{}))
		require.NotEmpty(b, b.Claim(10, time.Hour))
		require.NoError(b, b.Q.Purge(ctx))
		b.RequireClean()
	})
}

// TestLimits_RunningHoldsWhenALeaseIsExtendedLate: its place has another task by then. The one that ran out may be extended while there is a place.
func TestLimits_RunningHoldsWhenALeaseIsExtendedLate(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{Running: 2}))
		enqueueMany(b, 0, 3)
		es := b.Claim(2, time.Hour)
		b.EndLeaseSoon(es[0])
		b.Eventually(func() bool { return b.Stats().Leased == 1 })
		require.NoError(b, b.Q.Extend(ctx, es[0], 20*time.Millisecond), "its place is free")
		b.Eventually(func() bool { return b.Stats().Leased == 1 })
		require.Equal(b, "2", b.ClaimOne(time.Hour).ID)
		require.ErrorIs(b, b.Q.Extend(ctx, es[0], time.Hour), sluice.ErrStale)
		require.NoError(b, b.Q.Extend(ctx, es[1], time.Hour), "it has its place")
		require.EqualValues(b, 2, b.Stats().Leased)
		require.NoError(b, b.Q.Dequeue(ctx, es[0]), "nothing has claimed it since")
	})
}

// TestLimits_Rate: what was handed out counts, whatever becomes of it.
func TestLimits_Rate(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{Rate: 10, Per: time.Hour, Burst: 3}))
		enqueueMany(b, 0, 9)
		es := b.Claim(2, time.Hour)
		require.Len(b, es, 2)
		require.NoError(b, b.Q.Release(ctx, es...))
		require.Equal(b, []string{"2"}, pop(b, 5))
		require.Empty(b, pop(b, 5))
		require.Empty(b, b.Claim(5, time.Hour))

		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{Rate: 20, Per: time.Hour, Burst: 4}))
		require.Len(b, b.Claim(5, time.Hour), 1, "three tokens are spent")
		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{Rate: 1, Per: 24 * time.Hour, Burst: 2}))
		require.Empty(b, b.Claim(5, time.Hour))

		// A token each tenth of a second. A pause accrues the burst at most.
		limits := sluice.Limits{Rate: 10, Per: time.Second, Burst: 2}
		require.NoError(b, b.Q.SetLimits(ctx, limits))
		b.Eventually(func() bool { return len(b.Claim(1, time.Hour)) == 1 })
		began := b.Now()
		require.NoError(b, b.Q.Pause(ctx, 500*time.Millisecond))
		require.Empty(b, b.Claim(1, time.Hour))
		require.True(b, b.Stats().Paused)
		require.Equal(b, limits, b.Stats().Limits)
		var some []sluice.Entry
		b.Eventually(func() bool { some = b.Claim(9, time.Hour); return len(some) > 0 })
		require.Len(b, some, 2)
		require.GreaterOrEqual(b, b.Now()-began, 0.499)
		require.Empty(b, b.Claim(9, time.Hour))
		require.NoError(b, b.Q.Pause(ctx, 0))
		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{}))
		require.Empty(b, b.Claim(1, time.Hour), "the pause stays")
		require.NoError(b, b.Q.Resume(ctx))
		require.NotEmpty(b, b.Claim(9, time.Hour))
		got, err := b.Q.Limits(ctx)
		require.NoError(b, err)
		require.Zero(b, got)
	})
}

// TestLimits_APauseAndLimitsKeepEachOther, in either order.
func TestLimits_APauseAndLimitsKeepEachOther(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, limits := b.Context(), sluice.Limits{Running: 2, Rate: 7, Per: time.Minute, Burst: 5}
		require.NoError(b, b.Q.Pause(ctx, time.Hour))
		until := b.Stats().PausedUntil
		require.NoError(b, b.Q.SetLimits(ctx, limits))
		require.WithinDuration(b, until, b.Stats().PausedUntil, 5*time.Millisecond)
		require.Equal(b, limits, b.Stats().Limits)
		require.NoError(b, b.Q.Pause(ctx, 0))
		require.True(b, b.Stats().Paused)
		require.Zero(b, b.Stats().PausedUntil)
		enqueueMany(b, 3, 4)
		require.Empty(b, pop(b, 1))
		require.Empty(b, b.Claim(1, time.Hour))
		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{}))
		require.True(b, b.Stats().Paused)
		require.NoError(b, b.Q.Pause(ctx, 2*time.Hour))
		require.NoError(b, b.Q.SetLimits(ctx, limits))
		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{}))
		require.WithinDuration(b, until.Add(time.Hour), b.Stats().PausedUntil, time.Minute)
		require.NoError(b, b.Q.SetLimits(ctx, limits))
		require.NoError(b, b.Q.Resume(ctx))
		require.Equal(b, limits, b.Stats().Limits)
		enqueueMany(b, 0, 3)
		require.Len(b, b.Claim(3, time.Hour), 2)
	})
}

// TestLimits_WhatHasNoRoomInAReplyIsNotCounted: payloads of more than a megabyte come in two steps.
func TestLimits_WhatHasNoRoomInAReplyIsNotCounted(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		require.NoError(b, b.Q.SetLimits(b.Context(), sluice.Limits{Rate: 1, Per: time.Hour, Burst: 4}))
		for i := range 5 {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: fmt.Sprint(i), Payload: make([]byte, 700_000)})
		}
		require.Len(b, b.Claim(4, time.Hour), 4)
		require.NoError(b, b.Q.SetLimits(b.Context(), sluice.Limits{}))
		require.NoError(b, b.Q.SetLimits(b.Context(), sluice.Limits{Rate: 1, Per: time.Hour, Burst: 1}))
		require.Len(b, pop(b, 4), 1)
	})
}

// TestLimits_PopHeedsAPauseAndTheRate, with places and without.
func TestLimits_PopHeedsAPauseAndTheRate(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		enqueueMany(b, 0, 9)
		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{Running: 2, Rate: 1, Per: time.Hour, Burst: 4}))
		require.NoError(b, b.Q.Pause(ctx, 0))
		require.Empty(b, pop(b, 3))
		require.Empty(b, b.Claim(3, time.Hour))
		require.NoError(b, b.Q.Resume(ctx))
		require.Equal(b, []string{"0", "1", "2"}, pop(b, 3), "more than places, which it does not take")
		require.Equal(b, []string{"3"}, pop(b, 3))
		require.Empty(b, pop(b, 3))
	})
}

// TestLimits_AClockThatWasAhead: tasks are handed out at the rate again, not only when that time comes.
func TestLimits_AClockThatWasAhead(t *testing.T) {
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	q, err := sluice.NewQueue(rdb, "q")
	require.NoError(t, err)
	b := systest.QueueTest{T: t, Q: q, RDB: rdb}
	now := time.Now()
	at := func(off time.Duration) { m.SetTime(now.Add(off)) }
	at(0)
	enqueueMany(b, 0, 9)
	require.NoError(t, q.SetLimits(t.Context(), sluice.Limits{Rate: 10, Burst: 3}))
	at(time.Hour)
	require.Len(t, pop(b, 5), 3)
	at(time.Second)
	require.Len(t, pop(b, 5), 1)
	require.Empty(t, pop(b, 5))
	at(time.Second + 200*time.Millisecond)
	require.Len(t, pop(b, 5), 2)
	require.NoError(t, rdb.Close())
}

// limited is a fleet of workers in a bubble, each a client for itself.
type limited struct {
	mu      sync.Mutex
	starts  []time.Time
	running int
	most    int
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

// TestLimits_WhatLetsTheNextGoTellsAWorker that was refused by a full queue. A poll interval is an hour here, and a lease longer.
func TestLimits_WhatLetsTheNextGoTellsAWorker(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context, q *sluice.Queue, e sluice.Entry) error{
		"Dequeue": func(ctx context.Context, q *sluice.Queue, e sluice.Entry) error { return q.Dequeue(ctx, e) },
		"Retry": func(ctx context.Context, q *sluice.Queue, e sluice.Entry) error {
			return q.Retry(ctx, e, time.Hour, "")
		},
		"Release": func(ctx context.Context, q *sluice.Queue, e sluice.Entry) error { return q.Release(ctx, e) },
		"Bury":    func(ctx context.Context, q *sluice.Queue, e sluice.Entry) error { return q.Bury(ctx, e, "") },
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
				require.Empty(t, l.starts)
				began := time.Now()
				require.NoError(t, end(ctx, q, es[0]))
				time.Sleep(10 * time.Millisecond)
				require.NotEmpty(t, l.starts)
				require.Less(t, l.starts[0].Sub(began), 5*time.Millisecond)
				stop()
				all.Wait()
				time.Sleep(time.Minute)
			})
		})
	}
}

// TestLimits_ARefusedClaimTellsTheWatchman, who waits for a later head, when the next task may go: a worker that was told of the task, and
// was refused, does not see to it. A poll interval is an hour here.
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

// TestLimits_WaitReturnsWhenATaskMayGo, not while limits keep it: a queue that is looked at alone, or together with others of the client.
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

// TestLimits_AFinishThatClaimsTellsOfTheHead: an idle client, refused by a full queue, expects the end of a lease, and a worker finishes
// its task with a claim that brings none, before another task is due. A poll interval is an hour here.
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

// Bad input is refused, and nothing is sent.
func TestLimits_BadInput(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	q, err := sluice.NewQueue(rdb, "q")
	require.NoError(t, err)
	for _, l := range []sluice.Limits{
		{Running: -1}, {Rate: -1}, {Rate: 1, Per: -1}, {Rate: 1, Burst: -1}, {Per: 1}, {Burst: 1}, {Running: 1 << 40},
		{Rate: 1, Per: 200 * 365 * 24 * time.Hour}, {Rate: 2_000_000},
	} {
		require.ErrorIs(t, q.SetLimits(t.Context(), l), sluice.ErrInvalid, "%+v", l)
	}
	require.NoError(t, rdb.Close())
}

func TestLimits_OfSeveralShardsAreInvalid(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		require.ErrorIs(b, b.Q.SetLimits(b.Context(), sluice.Limits{Running: 1}), sluice.ErrInvalid)
		got, err := b.Q.Limits(b.Context())
		require.NoError(b, err)
		require.Zero(b, got)
	}, sluice.WithShards(2))
}
