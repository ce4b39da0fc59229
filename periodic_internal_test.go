package sluice

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/store"
)

// TestPeriodic_AnEarlierClaimThatIsAdmittedLater does not set the clock back by which the next occurrence is chosen. A process may
// have two claims of a task, if the server's clock was set ahead and the first lease is over.
func TestPeriodic_AnEarlierClaimThatIsAdmittedLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testAnEarlierClaim) // there a schedule answers at once
}

func testAnEarlierClaim(t *testing.T) {
	const lease = 30 * time.Second
	w := &Worker{Queue: &Queue{}, Periodic: []Periodic{{ID: "tick", Schedule: Every(50 * time.Millisecond)}}}
	p, err := w.newPeriodics(lease, slog.Default())
	require.NoError(t, err)
	first := time.Unix(1_700_000_000, 0).UTC()
	claim := func(due, at time.Time) (store.Task, occurrence) {
		o := occurrence{after: due.Add(-50 * time.Millisecond), due: due}
		return store.Task{ID: "tick", Attempt: 1, Header: o.header("tick", nil), Score: float64(at.Add(lease).UnixMicro()) / 1e6}, o
	}
	earlier, before := claim(first, first)
	later, o := claim(first.Add(10*time.Second), first.Add(10*time.Second+time.Millisecond))
	for _, c := range []struct {
		store.Task
		occurrence
	}{{later, o}, {earlier, before}} {
		_, err := p.admit(c.Task, c.occurrence)
		require.NoError(t, err)
	}
	d := p.conclude(later, store.Disposition{Action: store.Finish})
	require.NotNil(t, d.Next)
	require.Equal(t, o.due.Add(50*time.Millisecond), d.Next.At)
}
