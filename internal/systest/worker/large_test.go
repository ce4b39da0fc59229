package worker

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// Peek returns no poison entries, and reads on behind them.
func TestQueue_PeekReadsPastWhatItDoesNotShow(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		pipe := b.RDB.Pipeline()
		bad := b.Sized(1200)
		for i := range bad {
			id := fmt.Sprint("bad", i)
			pipe.ZAdd(ctx, b.Key, redis.Z{Score: 1, Member: id})
			pipe.HSet(ctx, "{"+b.Key+"}:state", id, "garbage")
		}
		_, err := pipe.Exec(ctx)
		require.NoError(b, err)
		b.Enqueue(sluice.Added, sluice.Task{ID: "good"})
		require.NoError(b, b.Q.Wait(ctx))
		peeked, err := b.Q.Peek(ctx, 1)
		require.NoError(b, err)
		require.Equal(b, []string{"good"}, systest.IDs(peeked))
		require.Equal(b, []string{"good"}, systest.IDs(b.Claim(1, time.Minute)))
		require.Equal(b, int64(bad), b.Stats().Dead)
	})
}

// A claim of large payloads is several scripts, so that none of them blocks the server
// for long.
func TestQueue_ClaimsLargePayloadsInSteps(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		const n = 12
		rdb, faults := s.Faulty(t)
		q := systest.NewQueue(t, rdb)
		var tasks []sluice.Task
		for i := range n {
			tasks = append(tasks, sluice.Task{ID: fmt.Sprint(i), Payload: make([]byte, 400_000)})
		}
		_, err := q.EnqueueBatch(t.Context(), tasks)
		require.NoError(t, err)
		require.NoError(t, q.Wait(t.Context()))
		time.Sleep(time.Millisecond) // the last of the batch is due 12 microseconds after the first
		before := faults.Scripts()
		claimed, err := q.Claim(t.Context(), 100, time.Minute)
		require.NoError(t, err)
		require.Len(t, claimed, n)
		require.Len(t, claimed[n-1].Payload, 400_000)
		require.GreaterOrEqual(t, faults.Scripts()-before, 4, "3 tasks make more than a megabyte")
	})
}

// When Dequeue fails in its second step, its error also names the stale receipts of the
// first step.
func TestQueue_DequeueReportsStaleReceiptsBesideAnError(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		q := systest.NewQueue(t, rdb)
		tasks := make([]sluice.Task, 600)
		for i := range tasks {
			tasks[i].ID = fmt.Sprint(i)
		}
		_, err := q.EnqueueBatch(t.Context(), tasks)
		require.NoError(t, err)
		var es []sluice.Entry
		for len(es) < len(tasks) {
			more, err := q.Claim(t.Context(), 600, time.Minute)
			require.NoError(t, err)
			es = append(es, more...)
		}
		require.ErrorIs(t, q.Dequeue(t.Context(), sluice.Entry{ID: "x", Score: 1}), sluice.ErrStale) // knows the script
		es[3].Score++
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		second := faults.Scripts() + 2
		faults.StallFrom(2)
		defer faults.Resume()
		go func() { // ends ctx when the second step is under way, to which no reply comes
			for faults.Scripts() < second && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		err = q.Dequeue(ctx, es...)
		require.ErrorIs(t, err, context.Canceled)
		var stale *sluice.StaleError
		require.ErrorAs(t, err, &stale)
		require.Equal(t, []string{es[3].ID}, stale.IDs)
	})
}

// Any number of letters is listed and revived, in steps.
func TestQueue_ListsAndRevivesManyDeadLetters(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, want := b.Context(), []string{}
		pipe := b.RDB.Pipeline()
		for i := range max(b.Sized(1203), 300) { // more than a step
			id := fmt.Sprint(5000 - i)
			want = append(want, id)
			pipe.ZAdd(ctx, "{"+b.Key+"}:dead", redis.Z{Score: float64(i), Member: id})
			pipe.HSet(ctx, "{"+b.Key+"}:state", id, "7:dead:why")
			pipe.HSet(ctx, "{"+b.Key+"}:tasks", id, "p")
		}
		_, err := pipe.Exec(ctx)
		require.NoError(b, err)
		letters := b.Dead(5000)
		require.Len(b, letters, len(want))
		for i, letter := range letters {
			require.Equal(b, sluice.DeadEntry{
				ID: want[i], Payload: []byte("p"), Reason: "why", Attempt: 7, Time: time.Unix(int64(i), 0),
			}, letter)
		}
		require.Len(b, b.Dead(len(want)/2), len(want)/2)
		b.Revive(len(want), append(want, "unknown")...)
		require.Empty(b, b.Dead(1))
		require.Len(b, b.Claim(5000, time.Minute), len(want))
	})
}

// A step that lists ends at a megabyte, and the next step goes on from there. To revive
// letters reads none of their payloads.
func TestQueue_ListsAndRevivesLargeDeadLettersInSteps(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		q := systest.NewQueue(t, rdb)
		var ids []string
		for i := range 12 {
			ids = append(ids, fmt.Sprint(i))
			_, err := q.Enqueue(t.Context(), sluice.Task{ID: ids[i], Payload: make([]byte, 400_000)})
			require.NoError(t, err)
			es, err := q.Claim(t.Context(), 1, time.Minute)
			require.NoError(t, err)
			require.NoError(t, q.Bury(t.Context(), es[0], ""))
		}
		before := faults.Scripts()
		letters, err := q.Dead(t.Context(), 100)
		require.NoError(t, err)
		require.Len(t, letters, 12)
		require.GreaterOrEqual(t, faults.Scripts()-before, 4, "3 letters make more than a megabyte")
		before = faults.Scripts()
		n, err := q.Revive(t.Context(), ids...)
		require.NoError(t, err)
		require.Equal(t, 12, n)
		require.LessOrEqual(t, faults.Scripts()-before, 2, "one, and one more to a server that does not know it")
	})
}
