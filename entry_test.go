package sluice_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestEntry_SaysWhenTheTaskBecameDue: whatever hands it out, and whether the server handles it as
// a plain task or not.
func TestEntry_SaysWhenTheTaskBecameDue(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, at := b.Context(), time.UnixMicro(1_700_000_000_123_457)
		var tasks []sluice.Task
		for i := range 6 {
			tasks = append(tasks, sluice.Task{ID: fmt.Sprint(i), At: at.Add(time.Duration(i) * time.Second)})
		}
		_, err := b.Q.EnqueueBatch(ctx, tasks)
		require.NoError(b, err)
		due := func(es []sluice.Entry, from int) {
			b.Helper()
			for i, e := range es {
				require.Equal(b, fmt.Sprint(from+i), e.ID)
				require.True(b, e.Due.Equal(tasks[from+i].At), "%s: %s", e.ID, e.Due)
			}
		}
		peeked, err := b.Q.Peek(ctx, 10)
		require.NoError(b, err)
		require.Len(b, peeked, 6)
		due(peeked, 0)
		due([]sluice.Entry{b.Get("5")}, 5)
		popped, err := b.Q.Pop(ctx, 1)
		require.NoError(b, err)
		require.Len(b, popped, 1)
		due(popped, 0)
		claimed := b.Claim(2, time.Hour)
		require.Len(b, claimed, 2)
		due(claimed, 1)
		require.Zero(b, b.Get("1").Due, "of a leased task that is not known")
		require.NoError(b, b.RDB.HSet(ctx, "{"+b.Key+"}:state", "3", "2:1.5:").Err()) // a lease that was over long ago: not a plain task
		claimed = b.Claim(10, time.Hour)
		require.Len(b, claimed, 3)
		for _, e := range claimed {
			require.True(b, e.Due.Equal(tasks[e.ID[0]-'0'].At), "%s: %s", e.ID, e.Due)
		}
		b.Enqueue(sluice.Added, sluice.Task{ID: "later", Delay: time.Hour})
		later := b.Get("later")
		require.Equal(b, later.Time(), later.Due)
		b.Bury(claimed[0], "why")
		letter := b.Get(claimed[0].ID)
		require.Zero(b, letter.Due)
		require.Equal(b, "why", letter.Reason)
		require.Equal(b, b.Dead(1)[0].Score, letter.Score)
	})
}

// TestEntry_DueIsTheEndOfALeaseThatRanOut, for the one who claims the task next.
func TestEntry_DueIsTheEndOfALeaseThatRanOut(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.Added, sluice.Task{ID: "a"})
		first := b.ClaimOne(2 * time.Second)
		var next []sluice.Entry
		require.Eventually(b, func() bool {
			next = b.Claim(1, time.Minute)
			return len(next) > 0
		}, time.Minute, 5*time.Millisecond)
		require.Equal(b, first.Time(), next[0].Due)
	})
}

// TestWorker_HandlerLearnsWhenTheTaskBecameDue.
func TestWorker_HandlerLearnsWhenTheTaskBecameDue(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		at := time.UnixMicro(1_700_000_000_123_457)
		b.Enqueue(sluice.Added, sluice.Task{ID: "a", At: at})
		ctx, stop := context.WithCancel(b.Context())
		defer stop()
		var due time.Time
		w := &sluice.Worker{Queue: b.Q, Handler: func(_ context.Context, e sluice.Entry) error {
			due = e.Due
			stop()
			return nil
		}}
		require.NoError(b, w.Run(ctx))
		require.True(b, due.Equal(at), due)
	})
}

// TestQueue_DeadIsListedInPages: every letter once, in order, also those that died at the same
// time, those whose scores are none of the library's, and behind one that is gone.
func TestQueue_DeadIsListedInPages(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, dead := b.Context(), "{"+b.Key+"}:dead"
		var want []string
		for i, score := range []float64{-1e300, -5.25, 0, 0, 1.5e-7, 1_700_000_000.1234567, 1_700_000_000.1234567, 1_700_000_000.1234569, 1e300} {
			want = append(want, fmt.Sprint("l", i))
			require.NoError(b, b.RDB.ZAdd(ctx, dead, redis.Z{Score: score, Member: want[i]}).Err())
		}
		require.NoError(b, b.RDB.Do(ctx, "ZADD", dead, "-inf", "before", "+inf", "behind", "+inf", "behind2").Err())
		want = append(append([]string{"before"}, want...), "behind", "behind2")
		for size := 1; size < 5; size++ {
			var all []string
			for after, left := (sluice.Entry{}), true; left; {
				page, err := b.Q.Dead(ctx, after, size)
				require.NoError(b, err)
				for _, e := range page {
					require.Equal(b, sluice.Dead, e.State)
				}
				all = append(all, systest.IDs(page)...)
				require.LessOrEqual(b, len(all), len(want), all)
				if left = len(page) == size; left {
					after = page[size-1]
				}
			}
			require.Equal(b, want, all)
		}
		require.NoError(b, b.RDB.ZRem(ctx, dead, "l5").Err())
		rest, err := b.Q.Dead(ctx, sluice.Entry{ID: "l5", Score: 1_700_000_000.1234567}, 2)
		require.NoError(b, err)
		require.Equal(b, []string{"l6", "l7"}, systest.IDs(rest))
	})
}
