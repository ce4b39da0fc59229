package virtualtime

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
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
		require.InDelta(t, 25*time.Minute, time.Since(start), float64(2*time.Microsecond))
		es, err := q.Claim(ctx, 1, 10*time.Minute)
		require.NoError(t, err)
		require.Len(t, es, 1)

		// When a lease ends.
		start = time.Now()
		require.NoError(t, q.Wait(ctx))
		require.InDelta(t, 10*time.Minute, time.Since(start), float64(2*time.Microsecond))
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
		require.InDelta(t, 61*time.Second, time.Since(start), float64(2*time.Microsecond))
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
		// A poll is an EVALSHA of three commands; miniredis counts each.
		require.LessOrEqual(t, m.CommandCount()-before, 1200*3)
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
		time.Sleep(4 * time.Second)
		require.Len(t, m.PubSubChannels("*"), 1)
		time.Sleep(2 * time.Second)
		require.Empty(t, m.PubSubChannels("*"))
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
			require.GreaterOrEqual(n, time.Until(e.Time()), time.Second/2, "its lease is nearly over")
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
