package queues

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestPause_HandsNothingOut: a paused queue takes and keeps tasks, and those that are leased go on.
func TestPause_HandsNothingOut(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "held"})
		held := b.ClaimOne(time.Minute)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		require.NoError(b, b.Q.Pause(ctx, 0))
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "b"})
		require.Empty(b, b.Claim(10, time.Minute))
		popped, err := b.Q.Pop(ctx, 10)
		require.NoError(b, err)
		require.Empty(b, popped)
		seen, err := b.Q.Peek(ctx, 10)
		require.NoError(b, err)
		require.Equal(b, []string{"a", "b"}, systest.IDs(seen))
		stats := b.Stats()
		require.True(b, stats.Paused)
		require.Zero(b, stats.PausedUntil)
		require.EqualValues(b, 2, stats.Due)
		require.EqualValues(b, 1, stats.Leased)
		require.NoError(b, b.Q.Extend(ctx, held, time.Hour))
		require.NoError(b, b.Q.Dequeue(ctx, held), "what is under way goes on")

		require.NoError(b, b.Q.Pause(ctx, time.Hour))
		stats = b.Stats()
		require.True(b, stats.Paused)
		require.InDelta(b, b.Now()+3600, sluice.Entry{Score: float64(stats.PausedUntil.UnixMicro()) / 1e6}.Score, 60)
		require.Empty(b, b.Claim(10, time.Minute))
		require.NoError(b, b.Q.Purge(ctx))
		require.True(b, b.Stats().Paused, "Purge keeps it")
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		require.NoError(b, b.Q.Resume(ctx))
		require.NoError(b, b.Q.Resume(ctx), "twice")
		require.False(b, b.Stats().Paused)
		require.NoError(b, b.Q.Dequeue(ctx, b.ClaimOne(time.Minute)))
		require.ErrorIs(b, b.Q.Pause(ctx, -1), sluice.ErrInvalid)
		b.RequireClean()
	})
}

// TestPause_EndsByItself, also one of less than a millisecond.
func TestPause_EndsByItself(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		for _, d := range []time.Duration{1, 300 * time.Millisecond} {
			began := b.Now()
			require.NoError(b, b.Q.Pause(b.Context(), d))
			var es []sluice.Entry
			for len(es) == 0 {
				require.NoError(b, b.Q.Wait(b.Context()))
				es = b.Claim(1, time.Minute)
			}
			require.GreaterOrEqual(b, b.Now()-began, max(d, time.Millisecond).Seconds()-0.001)
			require.NoError(b, b.Q.Release(b.Context(), es...))
		}
	})
}

// TestPause_WaitersLearnOfItsEnd at once, without polls: of Resume by its message, of the end of
// a pause by what a look has said of it. A poll interval is an hour here.
func TestPause_WaitersLearnOfItsEnd(t *testing.T) {
	for name, timed := range map[string]bool{"resumed": false, "over": true} {
		t.Run(name, func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
				q, err := sluice.NewQueue(rdb, "q", sluice.WithPollInterval(time.Hour))
				require.NoError(t, err)
				_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a"})
				require.NoError(t, err)
				d := time.Duration(0)
				if timed {
					d = 10 * time.Minute
				}
				require.NoError(t, q.Pause(t.Context(), d))
				began, handled := time.Now(), make(chan time.Duration, 1)
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				w := &sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error {
					handled <- time.Since(began)
					return nil
				}}
				go func() { ended <- w.Run(ctx) }()
				time.Sleep(5 * time.Minute) // in a bubble
				synctest.Wait()
				require.Empty(t, handled)
				want := 5 * time.Minute
				if timed {
					want = d
				} else {
					require.NoError(t, q.Resume(t.Context()))
				}
				require.InDelta(t, want, <-handled, float64(time.Second))
				stop()
				require.NoError(t, <-ended)
				time.Sleep(time.Minute) // the library's goroutines end
			})
		})
	}
}

// TestPause_CausesNoPolls: the clients that wait ask no more often than without it.
func TestPause_CausesNoPolls(t *testing.T) {
	for _, d := range []time.Duration{0, 30 * time.Minute} {
		t.Run(d.String(), func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
				var sent atomic.Int64
				rdb.AddHook(counting{&sent})
				q, err := sluice.NewQueue(rdb, "q", sluice.WithPollInterval(time.Minute))
				require.NoError(t, err)
				_, err = q.EnqueueBatch(t.Context(), []sluice.Task{{ID: "a"}, {ID: "b"}})
				require.NoError(t, err)
				require.NoError(t, q.Pause(t.Context(), d))
				ctx, stop := context.WithCancel(t.Context())
				w := &sluice.Worker{Queue: q, Concurrency: 4, Handler: func(context.Context, sluice.Entry) error { return nil }}
				ended := make(chan error, 1)
				go func() { ended <- w.Run(ctx) }()
				time.Sleep(20 * time.Minute) // in a bubble
				require.LessOrEqual(t, sent.Load(), int64(100), "20 poll intervals")
				require.Zero(t, w.Stats().Done)
				stop()
				require.NoError(t, <-ended)
				time.Sleep(time.Minute) // the library's goroutines end
			})
		})
	}
}

// counting counts commands.
type counting struct{ sent *atomic.Int64 }

func (c counting) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c counting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.sent.Add(1)
		return next(ctx, cmd)
	}
}

func (c counting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if !systest.SaysThatAWorkerLives(cmd) {
				c.sent.Add(1)
			}
		}
		return next(ctx, cmds)
	}
}

// TestPause_AShorterOneIsLearnedOfAtOnce by clients that have been told of the longer one's end.
func TestPause_AShorterOneIsLearnedOfAtOnce(t *testing.T) {
	for _, first := range []time.Duration{0, time.Hour} {
		t.Run(first.String(), func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
				q, err := sluice.NewQueue(rdb, "q", sluice.WithPollInterval(10*time.Hour))
				require.NoError(t, err)
				require.NoError(t, q.Pause(t.Context(), first))
				_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a"})
				require.NoError(t, err)
				handled, ended := make(chan time.Time, 1), make(chan error, 1)
				ctx, stop := context.WithCancel(t.Context())
				w := &sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error {
					handled <- time.Now()
					return nil
				}}
				go func() { ended <- w.Run(ctx) }()
				time.Sleep(time.Minute) // in a bubble: until the worker knows of the first
				require.NoError(t, q.Pause(t.Context(), 4*time.Second))
				began := time.Now()
				require.InDelta(t, 4*time.Second, (<-handled).Sub(began), float64(time.Second))
				stop()
				require.NoError(t, <-ended)
				time.Sleep(time.Minute) // the library's goroutines end
			})
		})
	}
}
