package sluice_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestPeriodic_ALateRequestForTheNextBringsNothingBack: one that had no reply and is made again, or that the network has held, comes when
// another worker has been handed the next occurrence, or has handled it. Only who was handed the task last may change it.
func TestPeriodic_ALateRequestForTheNextBringsNothingBack(t *testing.T) {
	const lease = time.Minute
	systest.EachQueue(t, func(b systest.QueueTest) {
		now := time.Now()
		at := func(after time.Duration) sluice.Task { return sluice.Task{ID: "a", At: now.Add(after)} }
		next := func(of sluice.Entry, task sluice.Task) {
			require.NoError(b, sluice.EnqueueNext(b.Context(), b.Q, task, of.Score))
		}
		waitsFor := func(task sluice.Task) {
			e, err := b.Q.Get(b.Context(), "a")
			require.NoError(b, err)
			require.Equal(b, sluice.Scheduled, e.State)
			require.WithinDuration(b, task.At, e.Due, time.Millisecond)
		}
		b.Enqueue(sluice.Added, at(-3*time.Minute))
		first := b.ClaimOne(lease)
		next(first, at(-2*time.Minute))
		next(first, at(-2*time.Minute)) // once more, as it had no reply
		require.NoError(b, b.Q.Dequeue(b.Context(), first))

		second := b.ClaimOne(lease)
		next(first, at(-2*time.Minute)) // late: it is being handled
		require.NoError(b, b.Q.Extend(b.Context(), second, 2*lease))
		next(first, at(-time.Minute))
		next(second, at(time.Hour)) // the receipt of the claim stays the holder's
		require.NoError(b, b.Q.Dequeue(b.Context(), second))
		waitsFor(at(time.Hour))

		next(first, at(-2*time.Minute)) // late: it has been handled
		next(second, at(time.Minute))
		waitsFor(at(time.Hour))
		require.Empty(b, b.Claim(1, lease))

		_, err := b.Q.Cancel(b.Context(), "a")
		require.NoError(b, err)
		next(second, at(time.Hour)) // what was removed meanwhile comes back
		waitsFor(at(time.Hour))
	})
}

// TestPeriodic_TheNextIsKeptWhenTheLeaseHasEnded: a server whose clock is set ahead ends leases of which the holder does not know. It
// enqueues the next occurrence, and reports the present one: that must not remove the task, whose receipt is good until another has it.
func TestPeriodic_TheNextIsKeptWhenTheLeaseHasEnded(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		due := time.Now().Add(time.Hour)
		state := func() sluice.Entry {
			e, err := b.Q.Get(b.Context(), "a")
			require.NoError(b, err)
			return e
		}
		b.Enqueue(sluice.Added, sluice.Task{ID: "a", At: time.Now().Add(-time.Minute)})
		e := b.ClaimOne(50 * time.Millisecond)
		require.Eventually(b, func() bool { return state().State == sluice.Due }, 10*time.Second, 10*time.Millisecond)
		require.NoError(b, sluice.EnqueueNext(b.Context(), b.Q, sluice.Task{ID: "a", At: due}, e.Score))
		require.NoError(b, b.Q.Dequeue(b.Context(), e))
		require.Equal(b, sluice.Scheduled, state().State)
		require.WithinDuration(b, due, state().Due, time.Millisecond)
	})
}
