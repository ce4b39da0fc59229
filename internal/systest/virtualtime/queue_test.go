package virtualtime

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/systest"
)

func TestQueue_WaitEndsOnTime(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		ctx := t.Context()
		q, err := sluice.NewQueue(rdb, "q", sluice.WithPollInterval(time.Hour))
		require.NoError(t, err)

		// It ends when the head is due, to the microsecond.
		start := time.Now()
		_, err = q.Enqueue(ctx, sluice.Task{ID: "a", Delay: 25 * time.Minute})
		require.NoError(t, err)
		require.NoError(t, q.Wait(ctx))
		require.InDelta(t, 25*time.Minute, time.Since(start), float64(5*time.Microsecond))
		es, err := q.Claim(ctx, 1, 10*time.Minute)
		require.NoError(t, err)
		require.Len(t, es, 1)

		// When a lease ends.
		start = time.Now()
		require.NoError(t, q.Wait(ctx))
		require.InDelta(t, 10*time.Minute, time.Since(start), float64(5*time.Microsecond))
		es, err = q.Claim(ctx, 1, 50*time.Minute)
		require.NoError(t, err)
		require.Len(t, es, 1)

		// When an earlier head comes.
		start = time.Now()
		time.AfterFunc(time.Minute, func() {
			_, err := q.Enqueue(ctx, sluice.Task{ID: "b", Delay: time.Second})
			require.NoError(t, err)
		})
		require.NoError(t, q.Wait(ctx))
		require.InDelta(t, 61*time.Second, time.Since(start), float64(5*time.Microsecond))
		_, err = q.Pop(ctx, 1)
		require.NoError(t, err)

		// When a task comes without a notification: after the poll interval.
		start = time.Now()
		time.AfterFunc(time.Minute, func() {
			_, err := m.ZAdd("Queue:q", 1, "foreign")
			require.NoError(t, err)
		})
		require.NoError(t, q.Wait(ctx))
		require.LessOrEqual(t, time.Since(start), time.Hour)
		require.NoError(t, q.Purge(ctx))

		// When its context ends.
		ctx, cancel := context.WithTimeout(ctx, 90*time.Minute)
		defer cancel()
		start = time.Now()
		require.ErrorIs(t, q.Wait(ctx), context.DeadlineExceeded)
		require.Equal(t, 90*time.Minute, time.Since(start))
		require.ErrorIs(t, q.Wait(ctx), context.DeadlineExceeded)
		time.Sleep(time.Minute) // so that what lingers has ended
	})
}

// TestQueue_ALongPollIntervalDelaysNothing: Redis says of a head that is due within the hour only,
// so that a client has to look once an hour at least. What clients wait for grows with their
// number, and stays a time.
func TestQueue_ALongPollIntervalDelaysNothing(t *testing.T) {
	for _, poll := range []time.Duration{90 * time.Minute, 24 * time.Hour, 3 * 365 * 24 * time.Hour, 100 * 365 * 24 * time.Hour} {
		for _, delay := range []time.Duration{30 * time.Minute, 2 * time.Hour, 5 * time.Hour} {
			for _, pause := range []time.Duration{0, 2 * time.Hour} {
				onIdlers(t, func(w *idlers, _ redis.UniversalClient) {
					go func() {
						for len(popOne(w)) == 0 {
							_ = w.wait.Wait(w.Context())
						}
						w.told <- time.Now()
					}()
					time.Sleep(time.Second)
					ready := time.Now().Add(max(delay, pause))
					if pause > 0 {
						require.NoError(w, w.act.Pause(w.Context(), pause))
					}
					w.enqueue("a", delay)
					require.InDelta(w, 0, (<-w.told).Sub(ready), float64(10*time.Millisecond), "poll interval %v, due in %v, paused for %v", poll, delay, pause)
				}, sluice.WithPollInterval(poll))
			}
		}
	}
}

func popOne(w *idlers) []sluice.Entry {
	entries, err := w.wait.Pop(w.Context(), 1)
	require.NoError(w, err)
	return entries
}

// TestQueue_IdleWaitersSendACommandASecond: processes that wait for nothing send a command
// a second, however many goroutines wait.
func TestQueue_IdleWaitersSendACommandASecond(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 10 {
			go func() { _ = q.Wait(ctx) }()
		}
		time.Sleep(time.Minute + time.Second/2) // between two polls
		before := m.CommandCount()
		time.Sleep(20 * time.Minute)
		// A poll is an EVALSHA of five commands; miniredis counts each.
		require.LessOrEqual(t, m.CommandCount()-before, 1200*6+60)
		cancel()
		time.Sleep(time.Minute)
	})
}

// TestQueue_UnusedSubscriptionsEnd: a subscription without listeners is given back
// without a Close, though not between two waits of a loop.
func TestQueue_UnusedSubscriptionsEnd(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, q.Wait(ctx), context.DeadlineExceeded)
		time.Sleep(9 * time.Second) // it is in line for five seconds, and listens for five more
		require.Len(t, m.PubSubChannels("*"), 1)
		time.Sleep(2 * time.Second)
		require.Empty(t, m.PubSubChannels("*"))
		time.Sleep(time.Minute)
	})
}

// A Claim in several steps ends before half of its lease is over. What a reply brings too
// late is not handed out.
func TestQueue_ClaimEndsLongBeforeItsLeases(t *testing.T) {
	faultyBubble(t, func(n network) {
		q, err := sluice.NewQueue(n.faulty, "q")
		require.NoError(n, err)
		tasks := make([]sluice.Task, 3000)
		for i := range tasks {
			tasks[i].ID = strconv.Itoa(i)
		}
		_, err = q.EnqueueBatch(n.Context(), tasks)
		require.NoError(n, err)
		time.Sleep(time.Second) // all of them are due
		n.faults.Delay(100 * time.Millisecond)

		es, err := q.Claim(n.Context(), 10_000, time.Second)
		require.NoError(n, err)
		require.NotEmpty(n, es)
		seen := map[string]bool{}
		for _, e := range es {
			require.False(n, seen[e.ID], "%s was handed out twice", e.ID)
			seen[e.ID] = true
			require.GreaterOrEqual(n, time.Until(store.TimeOf(e.Score)), time.Second/2, "its lease is nearly over")
		}

		es, err = q.Claim(n.Context(), 10, 100*time.Millisecond)
		require.ErrorIs(n, err, sluice.ErrLost)
		require.Empty(n, es)
		n.faults.Delay(0)
		es, err = q.Claim(n.Context(), 10_000, time.Minute)
		require.NoError(n, err)
		require.NotEmpty(n, es, "what was lost is due again")
		time.Sleep(time.Minute)
	})
}

// Where a round trip takes longer than the lease, a loop of Claim hands nothing out. It gives
// back what it has claimed, so that no task's attempts are used up unseen.
func TestQueue_ClaimGivesBackWhatCameTooLate(t *testing.T) {
	faultyBubble(t, func(n network) {
		q, err := sluice.NewQueue(n.faulty, "q", sluice.WithMaxAttempts(3))
		require.NoError(n, err)
		tasks := make([]sluice.Task, 300)
		for i := range tasks {
			tasks[i].ID = strconv.Itoa(i)
		}
		_, err = q.EnqueueBatch(n.Context(), tasks)
		require.NoError(n, err)
		time.Sleep(time.Second) // all of them are due
		n.faults.Delay(100 * time.Millisecond)
		for range 10 { // more often than it may be attempted
			es, err := q.Claim(n.Context(), 1000, 90*time.Millisecond)
			require.Empty(n, es)
			if err != nil { // else nothing was due
				require.ErrorIs(n, err, sluice.ErrLost)
			}
		}
		n.faults.Delay(0)
		time.Sleep(time.Second)
		es, err := q.Claim(n.Context(), 1000, time.Minute)
		require.NoError(n, err)
		require.Len(n, es, len(tasks), "none is dead")
		time.Sleep(time.Minute)
	})
}

// A loop of Wait and something that does not take the head goes round a few times a
// second. A new head is reported at once.
func TestQueue_WaitPausesOverTheSameHead(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		ctx := t.Context()
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		_, err = q.Enqueue(ctx, sluice.Task{ID: "poison", Delay: time.Second})
		require.NoError(t, err)
		wait := func(callers int) time.Duration {
			start := time.Now()
			var all sync.WaitGroup
			for range callers {
				all.Go(func() { require.NoError(t, q.Wait(ctx)) })
			}
			all.Wait()
			return time.Since(start)
		}
		require.InDelta(t, time.Second, wait(1), float64(5*time.Microsecond))
		for pause := time.Millisecond; pause < 100*time.Millisecond; pause *= 2 {
			require.Equal(t, pause, wait(1))
		}
		require.Equal(t, 100*time.Millisecond, wait(1))
		require.Equal(t, time.Second, wait(10), "one caller a pause")

		_, err = m.ZAdd("Queue:q", 2, "foreign")
		require.NoError(t, err)
		require.Zero(t, wait(1), "another head")
		require.Equal(t, time.Millisecond, wait(1))
		_, err = m.ZAdd("Queue:q", 1, "foreign")
		require.NoError(t, err)
		require.Zero(t, wait(1), "another score")
		for range 10 {
			wait(1)
		}
		time.AfterFunc(30*time.Millisecond, func() {
			_, err := q.Enqueue(ctx, sluice.Task{ID: "early", At: time.Unix(0, 500_000)})
			require.NoError(t, err)
		})
		require.Equal(t, 30*time.Millisecond, wait(1), "a head that comes in a pause")

		for range 3 { // a loop that takes what is due
			es, err := q.Pop(ctx, 1)
			require.NoError(t, err)
			require.Len(t, es, 1)
			if es[0].ID != "poison" {
				require.Zero(t, wait(1))
			}
		}

		// The same ID at the same time, once the last one was taken.
		for range 10 {
			_, err = q.Enqueue(ctx, sluice.Task{ID: "again", At: time.Unix(1, 0)})
			require.NoError(t, err)
			require.Zero(t, wait(1))
			_, err = q.Pop(ctx, 1)
			require.NoError(t, err)
		}
		synctest.Wait() // a look that was under way says what it saw
		// Or taken by another process, which this one finds out.
		for i := range 10 {
			time.AfterFunc(time.Second+time.Second/2, func() {
				_, err := m.ZAdd("Queue:q", 1, "foreign")
				require.NoError(t, err)
			})
			if took := wait(1); i > 0 {
				require.Equal(t, 2*time.Second, took)
			} else { // it may have joined the line just now: then its first look is at any time
				require.InDelta(t, 2*time.Second, took, float64(time.Second/2))
			}
			_, err := m.ZRem("Queue:q", "foreign")
			require.NoError(t, err)
		}
		time.Sleep(time.Minute) // so that what lingers has ended
	})
}

// A pause over the same head is no longer than the poll interval.
func TestQueue_WaitPausesForAPollIntervalAtMost(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q", sluice.WithPollInterval(5*time.Millisecond))
		require.NoError(t, err)
		_, err = q.Enqueue(t.Context(), sluice.Task{ID: "poison", Delay: time.Millisecond})
		require.NoError(t, err)
		require.NoError(t, q.Wait(t.Context()))
		start := time.Now()
		for range 11 { // 1, 2, 4, and 5 ms eight times
			require.NoError(t, q.Wait(t.Context()))
		}
		require.InDelta(t, 47*time.Millisecond, time.Since(start), float64(time.Microsecond))
		time.Sleep(time.Minute)
	})
}

// TestQueue_ReplacesAQuietSubscription: a pub/sub connection that has gone quiet without an error
// is found out by a look that finds what it should have said, and replaced.
func TestQueue_ReplacesAQuietSubscription(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		faults := redistest.NewFaults(systest.BubbleDialer(m))
		waiting := systest.BubbleClient(t, faults.Dial)
		defer func() { _ = waiting.Close() }()
		q, err := sluice.NewQueue(waiting, "q", sluice.WithPollInterval(10*time.Second))
		require.NoError(t, err)
		producer, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		popped, ended := make(chan time.Time, 1), make(chan struct{})
		go func() {
			defer close(ended)
			for q.Wait(ctx) == nil {
				if es, _ := q.Pop(ctx, 1); len(es) > 0 {
					popped <- time.Now()
				}
			}
		}()
		late := func() time.Duration {
			time.Sleep(15 * time.Second)
			start := time.Now()
			_, err := producer.Enqueue(ctx, sluice.Task{ID: "a"})
			require.NoError(t, err)
			return (<-popped).Sub(start)
		}
		require.Zero(t, late())
		faults.HalfOpen()
		require.Positive(t, late(), "it was not quiet")
		require.Zero(t, late(), "it was not replaced")
		stop()
		<-ended
		time.Sleep(time.Minute) // so that what lingers has ended
	})
}
