package queues

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestQueue_ADelayBelowZeroIsNone, as a past At is: time.Until(deadline) that is late means now.
func TestQueue_ADelayBelowZeroIsNone(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, before := b.Context(), time.Unix(0, int64(b.Now()*1e9)).Add(-time.Millisecond)
		claim := func() sluice.Entry {
			e := b.ClaimOne(time.Minute)
			require.WithinRange(b, e.Due, before, time.Unix(0, int64(b.Now()*1e9)).Add(time.Millisecond))
			return e
		}
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Delay: -time.Hour})
		require.NoError(b, b.Q.Retry(ctx, -time.Hour, "failed", claim()))
		e := claim()
		found, err := b.Q.Reschedule(ctx, "a", -time.Hour) // it is due again once its holder has finished
		require.NoError(b, err)
		require.True(b, found)
		require.NoError(b, b.Q.Dequeue(ctx, e))
		require.NoError(b, b.Q.Dequeue(ctx, claim()))
		outcomes, err := b.Q.EnqueueBatch(ctx, []sluice.Task{{ID: "b", Delay: -time.Hour}, {ID: "c"}, {ID: "d", Delay: -time.Minute}})
		require.NoError(b, err)
		require.Len(b, outcomes, 3)
		require.Equal(b, []string{"b", "c", "d"}, systest.IDs(b.Claim(3, time.Minute)), "all are due now, in the order given")
	})
}

// TestQueue_RetryAndBuryTakeMany, as Dequeue and Release do, in steps; those with stale receipts are
// named, and the others are settled.
func TestQueue_RetryAndBuryTakeMany(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		const n = 260 // two steps
		ctx := b.Context()
		_, err := b.Q.EnqueueBatch(ctx, systest.DueTasks(n))
		require.NoError(b, err)
		es := b.Claim(n, time.Hour)
		require.Len(b, es, n)
		require.NoError(b, b.Q.Dequeue(ctx, es[7]))
		var stale *sluice.StaleError
		require.ErrorAs(b, b.Q.Retry(ctx, 0, "failed", es...), &stale)
		require.Equal(b, []string{es[7].ID}, stale.IDs)
		again := b.Claim(n, time.Hour)
		require.Len(b, again, n-1)
		require.Equal(b, 2, again[0].Attempt)
		require.Equal(b, "failed", b.Get(again[0].ID).Reason)
		require.NoError(b, b.Q.Dequeue(ctx, again[258]))
		require.ErrorAs(b, b.Q.Bury(ctx, "why", again...), &stale)
		require.Equal(b, []string{again[258].ID}, stale.IDs)
		require.EqualValues(b, n-2, b.Stats().Dead)
		require.Equal(b, "why", b.Get(again[0].ID).Reason)
		require.NoError(b, b.Q.Retry(ctx, 0, ""))
		require.NoError(b, b.Q.Bury(ctx, ""))
	})
}
