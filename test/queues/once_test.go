package queues

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestOnce_IsAnIdempotencyKey in each state of a task.
func TestOnce_IsAnIdempotencyKey(t *testing.T) {
	eachRemembering(t, func(b remembering) {
		ctx, task := b.Context(), sluice.Task{ID: "a", Payload: []byte("p")}
		again := sluice.Task{ID: "a", Payload: []byte("another"), Delay: time.Hour}
		payload := func() { require.Equal(b, "p", string(b.Get("a").Payload)) }
		b.Enqueue(sluice.OutcomeAdded, task)
		b.Enqueue(sluice.OutcomeKept, again)
		payload()
		e := b.ClaimOne(time.Minute)
		b.Enqueue(sluice.OutcomeKept, again)
		b.EndLeaseUnseen(e)
		b.Enqueue(sluice.OutcomeKept, again)
		payload()
		require.NoError(b, b.Q.Retry(ctx, time.Hour, "why", b.ClaimOne(time.Minute)))
		b.Enqueue(sluice.OutcomeKept, task)
		require.Equal(b, 1, b.Get("a").Attempt) // the first delivery did not count
		moved, err := b.Q.Reschedule(ctx, "a", 0)
		require.NoError(b, err)
		require.True(b, moved)
		require.NoError(b, b.Q.Dequeue(ctx, b.ClaimOne(time.Minute)))

		b.Enqueue(sluice.OutcomeDone, again)
		require.Equal(b, sluice.StateDone, b.Get("a").State)
		outcomes, err := b.Q.EnqueueBatch(ctx, []sluice.Task{{ID: "b"}, task, task, {ID: "c"}, {ID: "b"}, task})
		require.NoError(b, err)
		const added, kept, done = sluice.OutcomeAdded, sluice.OutcomeKept, sluice.OutcomeDone
		require.Equal(b, []sluice.Outcome{added, done, done, added, kept, done}, outcomes)
		outcomes, err = b.Q.EnqueueBatch(ctx, []sluice.Task{{ID: "d"}, task}) // no ID twice, none in the queue
		require.NoError(b, err)
		require.Equal(b, []sluice.Outcome{added, done}, outcomes)
		es, err := b.Q.Pop(ctx, 10)
		require.NoError(b, err)
		require.Len(b, es, 3)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "b"}) // Pop remembers nothing
		_, err = b.Q.Pop(ctx, 10)
		require.NoError(b, err)

		state, err := b.Q.Cancel(ctx, "a")
		require.NoError(b, err)
		require.Equal(b, sluice.StateDone, state)
		b.Enqueue(sluice.OutcomeAdded, again)
		state, err = b.Q.Cancel(ctx, "a")
		require.NoError(b, err)
		require.Equal(b, sluice.StateScheduled, state)
		b.Enqueue(sluice.OutcomeAdded, task)
		b.Bury(b.ClaimOne(time.Minute), "hopeless")
		b.Enqueue(sluice.OutcomeAdded, task)
		require.Zero(b, b.Stats().Dead)
		require.NoError(b, b.Q.Dequeue(ctx, b.ClaimOne(time.Minute)))
		b.age("a", time.Hour-time.Minute)
		b.Enqueue(sluice.OutcomeDone, task)
		b.age("a", time.Hour+time.Second)
		b.Enqueue(sluice.OutcomeAdded, task)
	}, sluice.WithDuplicates(sluice.DuplicatesOnce))
}

// TestOnce_ABatchWithAnIDTwice that was done, and is a dead letter since: the first one replaces
// the letter, and the others find that.
func TestOnce_ABatchWithAnIDTwice(t *testing.T) {
	eachRemembering(t, func(b remembering) {
		b.finish("a")
		outcomes, err := b.Q.EnqueueBatch(b.Context(), []sluice.Task{{ID: "a", Duplicates: sluice.DuplicatesOnce}, {ID: "a", Duplicates: sluice.DuplicatesOnce}})
		require.NoError(b, err)
		require.Equal(b, []sluice.Outcome{sluice.OutcomeDone, sluice.OutcomeDone}, outcomes)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		require.NoError(b, b.Q.Bury(b.Context(), "no", b.ClaimOne(time.Minute)))
		three := slices.Repeat([]sluice.Task{{ID: "a", Duplicates: sluice.DuplicatesOnce}}, 3)
		outcomes, err = b.Q.EnqueueBatch(b.Context(), three)
		require.NoError(b, err)
		require.Equal(b, []sluice.Outcome{sluice.OutcomeAdded, sluice.OutcomeKept, sluice.OutcomeKept}, outcomes)
	})
}

// TestOnce_NeedsItsKeys: where it cannot be known whether a task is done, it is not enqueued.
func TestOnce_NeedsItsKeys(t *testing.T) {
	eachRemembering(t, func(b remembering) {
		require.NoError(b, b.RDB.Set(b.Context(), b.doneKey(), "another's", 0).Err())
		_, err := b.Q.Enqueue(b.Context(), sluice.Task{ID: "a"})
		require.ErrorContains(b, err, "WRONGTYPE")
		_, err = b.Q.Get(b.Context(), "b")
		require.ErrorContains(b, err, "WRONGTYPE")
		require.NoError(b, b.RDB.Del(b.Context(), b.doneKey()).Err())
		b.RequireClean()
	}, sluice.WithDuplicates(sluice.DuplicatesOnce))
}

// TestKeepDue_HasTheNewestPayloadAtTheEarliestTime, whatever the state.
func TestKeepDue_HasTheNewestPayloadAtTheEarliestTime(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		version := func(want sluice.Outcome, payload string, delay time.Duration) {
			b.Helper()
			b.Enqueue(want, sluice.Task{ID: "a", Payload: []byte(payload), Delay: delay})
		}
		is := func(payload string, due time.Time) {
			b.Helper()
			got := b.Get("a")
			require.Equal(b, payload, string(got.Payload))
			require.WithinDuration(b, due, got.Due, 20*time.Microsecond)
		}
		version(sluice.OutcomeAdded, "1", time.Hour)
		first := b.Get("a")
		version(sluice.OutcomeUpdated, "2", 2*time.Hour)
		is("2", first.Due)
		require.ErrorIs(b, b.Q.Dequeue(ctx, first.Entry), sluice.ErrStale, "the receipt of the version before")
		version(sluice.OutcomeUpdated, "3", time.Minute)
		require.Less(b, time.Until(b.Get("a").Due), 2*time.Minute)
		version(sluice.OutcomeUpdated, "4", 0)
		e := b.ClaimOne(time.Minute)
		require.Equal(b, "4", string(e.Payload))

		version(sluice.OutcomeDeferred, "5", time.Minute)
		version(sluice.OutcomeDeferred, "6", time.Hour)
		require.NoError(b, b.Q.Dequeue(ctx, e))
		require.Less(b, time.Until(b.Get("a").Due), 2*time.Minute, "the earliest of those that waited")
		is("6", b.Get("a").Due)
		version(sluice.OutcomeUpdated, "7", 0)
		e = b.ClaimOne(time.Minute)
		version(sluice.OutcomeDeferred, "8", time.Hour)
		version(sluice.OutcomeDeferred, "9", 0)
		b.EndLeaseUnseen(e)
		version(sluice.OutcomeUpdated, "10", time.Hour)
		es, err := b.Q.Pop(ctx, 10)
		require.NoError(b, err)
		require.Len(b, es, 1)
		require.Equal(b, "10", string(es[0].Payload))
		require.ErrorIs(b, b.Q.Dequeue(ctx, e), sluice.ErrStale)
		b.RequireClean()
	}, sluice.WithDuplicates(sluice.DuplicatesKeepDue))
}

// TestKeepDue_OfADocumentThatChangesAllTheTime: three hundred times a second; it is indexed a
// second after its first change, with the payload of that moment. With DuplicatesReplace it never
// is.
func TestKeepDue_OfADocumentThatChangesAllTheTime(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		for policy, times := range map[sluice.Duplicates]int{sluice.DuplicatesKeepDue: 2, sluice.DuplicatesReplace: 0} {
			b := systest.NewQueueTest(t, rdb, policy.String(), sluice.WithDuplicates(policy))
			var late []time.Duration
			var old []int
			begun := time.Now()
			var changes atomic.Int64
			stop := systest.StartWorker(t, &sluice.Worker{Queue: b.Q, Handler: func(_ context.Context, e sluice.Entry) error {
				var n int
				_, err := fmt.Sscan(string(e.Payload), &n)
				late, old = append(late, time.Since(begun)-time.Duration(len(late)+1)*time.Second), append(old, int(changes.Load())-n)
				return err
			}})
			for ; time.Since(begun) < 2500*time.Millisecond; changes.Add(1) {
				_, err := b.Q.Enqueue(t.Context(), sluice.Task{ID: "document", Payload: []byte(fmt.Sprint(changes.Load())), Delay: time.Second})
				require.NoError(t, err)
				time.Sleep(3 * time.Millisecond)
			}
			require.NoError(t, stop())
			require.Len(t, late, times, "%v", policy)
			for i, d := range late {
				require.GreaterOrEqual(t, d, time.Duration(0))
				require.Less(t, d, 10*time.Millisecond, "300 changes, a microsecond each")
				require.LessOrEqual(t, old[i], 10)
			}
		}
		time.Sleep(time.Minute)
	})
}
