package virtualtime

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// idlers is clients of one queue, of which one waits and others do something before it.
type idlers struct {
	*testing.T
	m    *miniredis.Miniredis
	wait *sluice.Queue // of the client that waits
	act  *sluice.Queue // of another one
	told chan time.Time
	rdb  redis.UniversalClient
}

// onIdlers runs a test on the fake clock.
func onIdlers(t *testing.T, test func(w *idlers, rdb redis.UniversalClient), opts ...sluice.QueueOption) {
	t.Helper()
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		w := &idlers{T: t, m: m, told: make(chan time.Time, 1), rdb: rdb}
		other := systest.BubbleClient(t, systest.BubbleDialer(m))
		w.wait, w.act = w.open(rdb, "q", opts...), w.open(other, "q")
		test(w, rdb)
		time.Sleep(time.Minute) // what lingers
		require.NoError(t, other.Close())
		time.Sleep(time.Minute)
	})
}

func (w *idlers) open(rdb redis.UniversalClient, name string, opts ...sluice.QueueOption) *sluice.Queue {
	q, err := sluice.NewQueue(rdb, name, opts...)
	require.NoError(w, err)
	return q
}

// begin has the client wait.
func (w *idlers) begin() {
	go func() { // until it is told, which each test waits for
		_ = w.wait.Wait(w.Context())
		w.told <- time.Now()
	}()
	time.Sleep(300 * time.Millisecond)
}

// enqueue enqueues a task, and returns when it is due.
func (w *idlers) enqueue(id string, delay time.Duration) time.Time {
	_, err := w.act.Enqueue(w.Context(), sluice.Task{ID: id, Delay: delay})
	require.NoError(w, err)
	return time.Now().Add(delay)
}

// foreign adds a task that is due as a foreign producer does, of which none is told.
func (w *idlers) foreign() {
	_, err := w.m.ZAdd("Queue:q", float64(time.Now().Unix()), "foreign")
	require.NoError(w, err)
}

// claim claims one task.
func (w *idlers) claim(q *sluice.Queue) {
	entries, err := q.Claim(w.Context(), 1, time.Minute)
	require.NoError(w, err)
	require.Len(w, entries, 1)
}

// line returns the clients in line, with their scores.
func (w *idlers) line() map[string]float64 {
	line := map[string]float64{}
	for _, z := range w.rdb.ZRangeWithScores(w.Context(), "{Queue:q}:line", 0, -1).Val() {
		line[z.Member.(string)] = z.Score
	}
	return line
}

func (w *idlers) requireTold(due time.Time) {
	w.Helper()
	require.WithinDuration(w, due, <-w.told, 10*time.Microsecond)
}

// TestIdle_AClientWhoseCallerHasGonePassesOn what it is told, in whatever moment.
func TestIdle_AClientWhoseCallerHasGonePassesOn(t *testing.T) {
	for _, gone := range []time.Duration{0, 5 * time.Millisecond, 100 * time.Millisecond, 4 * time.Second, 6 * time.Second} {
		t.Run(gone.String(), func(t *testing.T) {
			onIdlers(t, func(w *idlers, _ redis.UniversalClient) {
				w.begin()
				last := systest.BubbleClient(w.T, systest.BubbleDialer(w.m))
				ctx, leave := context.WithTimeout(w.Context(), 100*time.Millisecond)
				defer leave()
				require.ErrorIs(w, w.open(last, "q").Wait(ctx), context.DeadlineExceeded)
				time.Sleep(gone)
				w.requireTold(w.enqueue("a", 0))
				time.Sleep(time.Minute)
				require.NoError(w, last.Close())
			})
		})
	}
}

// TestIdle_AWatchThatIsOverCostsNothing: the watchman looks more rarely than the watch lasts that
// it was told of.
func TestIdle_AWatchThatIsOverCostsNothing(t *testing.T) {
	onIdlers(t, func(w *idlers, _ redis.UniversalClient) {
		w.begin()
		w.enqueue("late", 30*time.Second)
		time.Sleep(3 * time.Second)
		w.requireTold(w.enqueue("early", 5*time.Second))
	}, sluice.WithPollInterval(time.Minute))
}

// TestIdle_AWatchThatIsOverCostsNoPlace: another client looks, is the watchman then, and leaves.
func TestIdle_AWatchThatIsOverCostsNoPlace(t *testing.T) {
	onIdlers(t, func(w *idlers, _ redis.UniversalClient) {
		w.begin()
		w.enqueue("late", 30*time.Second)
		time.Sleep(3 * time.Second)
		ctx, leave := context.WithTimeout(w.Context(), 100*time.Millisecond)
		defer leave()
		require.ErrorIs(w, w.act.Wait(ctx), context.DeadlineExceeded)
		time.Sleep(10 * time.Second)
		w.requireTold(w.enqueue("now", 0))
	}, sluice.WithPollInterval(time.Minute))
}

// TestIdle_AWatchmanWithoutAHeadIsLikeTheOthers: its queue, which is looked at together with
// another one, is empty for longer than its watch.
func TestIdle_AWatchmanWithoutAHeadIsLikeTheOthers(t *testing.T) {
	onIdlers(t, func(w *idlers, rdb redis.UniversalClient) {
		w.enqueue("a", 0)
		entries, err := w.act.Claim(w.Context(), 1, time.Minute)
		require.NoError(w, err)
		ctx, leave := context.WithCancel(w.Context())
		defer leave()
		go func() { _ = w.open(rdb, "another").Wait(ctx) }() // it ends with ctx
		w.begin()
		time.Sleep(3 * time.Second)
		require.NoError(w, w.act.Dequeue(w.Context(), entries...))
		time.Sleep(8 * time.Second)
		w.requireTold(w.enqueue("b", 100*time.Millisecond))
	})
}

// TestIdle_ATaskBehindADueOneIsOnTime: it was no head when it was enqueued, and is one when the
// other is claimed.
func TestIdle_ATaskBehindADueOneIsOnTime(t *testing.T) {
	onIdlers(t, func(w *idlers, _ redis.UniversalClient) {
		w.begin()
		time.Sleep(5 * time.Second)
		w.foreign()
		due := w.enqueue("later", 100*time.Millisecond)
		w.claim(w.act)
		w.requireTold(due)
	})
}

// TestIdle_ATaskBehindAPoppedOneIsOnTime: likewise, and the watchman, which pops the other, does
// not come back soon.
func TestIdle_ATaskBehindAPoppedOneIsOnTime(t *testing.T) {
	onIdlers(t, func(w *idlers, rdb redis.UniversalClient) {
		w.enqueue("first", 3*time.Second)
		last := systest.BubbleClient(w.T, systest.BubbleDialer(w.m))
		q := w.open(last, "q")
		popped := make(chan error, 1)
		go func() { // the watchman, until the first task is due
			_ = q.Wait(w.Context())
			_, err := q.Pop(w.Context(), 1)
			popped <- err
		}()
		time.Sleep(500 * time.Millisecond)
		w.begin()
		due := w.enqueue("second", 2*time.Second+550*time.Millisecond)
		require.NoError(w, <-popped)
		told := <-w.told
		require.False(w, told.Before(due))
		require.WithinDuration(w, due, told, time.Millisecond)
		time.Sleep(time.Minute)
		require.NoError(w, last.Close())
	})
}

// TestIdle_AFullWorkerIsNotWaitedFor: it leaves the line once its handler is busy, so that another
// one is told of the next task at once.
func TestIdle_AFullWorkerIsNotWaitedFor(t *testing.T) {
	onIdlers(t, func(w *idlers, rdb redis.UniversalClient) {
		ctx, stop := context.WithCancel(w.Context())
		handled, ended := make(chan time.Duration, 10), make(chan error, 2)
		work := func(q *sluice.Queue) {
			worker := &sluice.Worker{Queue: q, Concurrency: 1, Handler: func(ctx context.Context, e sluice.Entry) error {
				handled <- time.Since(e.Due)
				if e.ID == "long" {
					time.Sleep(3 * time.Second)
				}
				return nil
			}}
			go func() { ended <- worker.Run(ctx) }()
			time.Sleep(300 * time.Millisecond)
		}
		work(w.wait)
		last := systest.BubbleClient(w.T, systest.BubbleDialer(w.m))
		work(w.open(last, "q"))
		producer := w.open(last, "q")
		for _, id := range []string{"long", "a", "b", "c", "d", "e", "f", "g"} {
			_, err := producer.Enqueue(w.Context(), sluice.Task{ID: id})
			require.NoError(w, err)
			time.Sleep(40 * time.Millisecond)
			require.Less(w, <-handled, time.Millisecond, id)
		}
		stop()
		require.NoError(w, <-ended)
		require.NoError(w, <-ended)
		time.Sleep(time.Minute)
		require.NoError(w, last.Close())
	})
}

// TestIdle_AClaimantThatGetsBusyHandsItsWatchOn, and leaves the line. The head is a lease, of which
// others are not told else.
func TestIdle_AClaimantThatGetsBusyHandsItsWatchOn(t *testing.T) {
	onIdlers(t, func(w *idlers, _ redis.UniversalClient) {
		w.enqueue("leased", 0)
		_, err := w.act.Claim(w.Context(), 1, 3*time.Second)
		require.NoError(w, err)
		due := time.Now().Add(3 * time.Second)
		ctx, leave := context.WithTimeout(w.Context(), 100*time.Millisecond)
		defer leave()
		require.ErrorIs(w, w.act.Wait(ctx), context.DeadlineExceeded)
		w.begin()
		w.foreign()
		w.claim(w.act)
		require.Len(w, w.line(), 1)
		w.requireTold(due)
	}, sluice.WithPollInterval(time.Minute))
}

// TestIdle_AClaimantThatStaysInLineTellsTheWatchman of what is due later, and was behind what it
// has got.
func TestIdle_AClaimantThatStaysInLineTellsTheWatchman(t *testing.T) {
	onIdlers(t, func(w *idlers, _ redis.UniversalClient) {
		w.enqueue("late", 30*time.Second)
		w.begin()
		ctx, leave := context.WithCancel(w.Context())
		defer leave()
		go func() { _ = w.act.Wait(ctx) }() // it ends with ctx
		time.Sleep(1500 * time.Millisecond)
		w.foreign()
		due := w.enqueue("later", 100*time.Millisecond)
		w.claim(w.act)
		require.Len(w, w.line(), 2)
		w.requireTold(due)
	}, sluice.WithPollInterval(time.Minute))
}

// TestIdle_AClaimThatJoinsHearsMessages, although its client has had no caller for a while.
func TestIdle_AClaimThatJoinsHearsMessages(t *testing.T) {
	onIdlers(t, func(w *idlers, _ redis.UniversalClient) {
		w.begin()
		ctx, leave := context.WithTimeout(w.Context(), 100*time.Millisecond)
		defer leave()
		require.ErrorIs(w, w.act.Wait(ctx), context.DeadlineExceeded)
		time.Sleep(7 * time.Second)
		require.Len(w, w.line(), 1)
		entries, err := w.act.Claim(w.Context(), 1, time.Minute)
		require.NoError(w, err)
		require.Empty(w, entries)
		require.Len(w, w.line(), 2)
		time.Sleep(100 * time.Millisecond)
		w.requireTold(w.enqueue("a", 0))
	}, sluice.WithPollInterval(time.Minute))
}

// TestIdle_ThereIsOneWatchman: the one whose watch is over is like the others, and the dead one is
// out of the line.
func TestIdle_ThereIsOneWatchman(t *testing.T) {
	for ends, score := range map[time.Duration]float64{-time.Millisecond: 0, time.Minute: -1} {
		t.Run(ends.String(), func(t *testing.T) {
			onIdlers(t, func(w *idlers, _ redis.UniversalClient) {
				w.begin()
				_, err := w.m.ZAdd("{Queue:q}:line", float64(time.Now().Add(ends).UnixMicro())-1e16, "other") // which does not listen
				require.NoError(w, err)
				due := w.enqueue("a", time.Second)
				line := w.line()
				other, there := line["other"]
				require.Equal(w, score == 0, there)
				require.Zero(w, other)
				delete(line, "other")
				for _, score := range line {
					require.Negative(w, score)
				}
				w.requireTold(due)
			}, sluice.WithPollInterval(time.Minute))
		})
	}
}
