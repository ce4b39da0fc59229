package sluice_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// nextTest is a queue with a task that others take the place of.
type nextTest struct {
	systest.QueueTest
	now time.Time
}

// at returns the task as it is at a time after the start of the test.
func (b nextTest) at(after time.Duration) sluice.Task {
	return sluice.Task{ID: "a", At: b.now.Add(after), Payload: []byte(after.String()), Header: map[string]string{"k": after.String()}}
}

// requireIs requires that the task is the one of at, and was never claimed.
func (b nextTest) requireIs(state sluice.State, after time.Duration) {
	b.Helper()
	e, err := b.Q.Get(b.Context(), "a")
	require.NoError(b, err)
	require.Equal(b, state, e.State)
	require.WithinDuration(b, b.at(after).At, e.Due, time.Millisecond)
	require.Equal(b, after.String(), string(e.Payload))
	require.Equal(b, after.String(), e.Header["k"])
	require.Zero(b, e.Attempt)
}

func eachNextTest(t *testing.T, test func(b nextTest)) {
	t.Helper()
	systest.EachQueue(t, func(b systest.QueueTest) { test(nextTest{b, time.Now()}) })
}

// TestPeriodic_ALateReportChangesNothing: one that had no reply and is sent again, or that the network has held, comes when another
// worker has been handed the next occurrence, or has handled it, or when the task is gone. Only who has the receipt may end the claim.
func TestPeriodic_ALateReportChangesNothing(t *testing.T) {
	eachNextTest(t, func(b nextTest) {
		const lease = time.Minute
		putNext := func(of sluice.Entry, after time.Duration) error {
			return sluice.PutNext(b.Context(), b.Q, of, b.at(after))
		}
		late := func(of sluice.Entry) {
			b.Helper()
			require.ErrorIs(b, putNext(of, -2*time.Minute), sluice.ErrStale)
			require.ErrorIs(b, b.Q.Dequeue(b.Context(), of), sluice.ErrStale)
		}
		b.Enqueue(sluice.Added, b.at(-3*time.Minute))
		first := b.ClaimOne(lease)
		require.NoError(b, putNext(first, -2*time.Minute))
		b.requireIs(sluice.Due, -2*time.Minute)
		late(first)
		b.requireIs(sluice.Due, -2*time.Minute)

		second := b.ClaimOne(lease)
		require.Equal(b, 1, second.Attempt)
		late(first) // it is being handled
		require.NoError(b, b.Q.Extend(b.Context(), second, 2*lease))
		late(first)
		require.NoError(b, putNext(second, time.Hour)) // the receipt of the claim stays the holder's
		late(first)                                    // it has been handled
		late(second)
		b.requireIs(sluice.Scheduled, time.Hour)

		seen := b.Get("a")
		require.NoError(b, putNext(seen, time.Minute)) // a schedule has changed
		require.ErrorIs(b, putNext(seen, 2*time.Hour), sluice.ErrStale)
		b.requireIs(sluice.Scheduled, time.Minute)

		_, err := b.Q.Cancel(b.Context(), "a")
		require.NoError(b, err)
		late(second)
		require.ErrorIs(b, putNext(seen, time.Minute), sluice.ErrStale)
		b.RequireClean()
	})
}

// TestPeriodic_TheNextIsKeptWhenTheLeaseHasEnded: a server whose clock is set ahead ends leases of which the holder does not know. As
// long as no other has been handed the task, its report is accepted.
func TestPeriodic_TheNextIsKeptWhenTheLeaseHasEnded(t *testing.T) {
	eachNextTest(t, func(b nextTest) {
		b.Enqueue(sluice.Added, b.at(-time.Minute))
		e := b.ClaimOne(50 * time.Millisecond)
		b.Eventually(func() bool {
			now, err := b.Q.Get(b.Context(), "a")
			return err == nil && now.State == sluice.Due
		})
		require.NoError(b, sluice.PutNext(b.Context(), b.Q, e, b.at(time.Hour)))
		b.requireIs(sluice.Scheduled, time.Hour)
		require.Zero(b, b.Stats().Leased)
	})
}

// TestPeriodic_AWaitingVersionComesBeforeTheNext, with its own payload.
func TestPeriodic_AWaitingVersionComesBeforeTheNext(t *testing.T) {
	eachNextTest(t, func(b nextTest) {
		b.Enqueue(sluice.Added, b.at(-time.Minute))
		e := b.ClaimOne(time.Minute)
		b.Enqueue(sluice.Deferred, b.at(2*time.Hour))
		require.NoError(b, sluice.PutNext(b.Context(), b.Q, e, b.at(time.Hour)))
		b.requireIs(sluice.Scheduled, 2*time.Hour)
	})
}
