package queues

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestGroup_OneThatHasOnlyPeekedLetsTheNextIn: a Queue that finishes what it has peeked at has met a
// task of a group.
func TestGroup_OneThatHasOnlyPeekedLetsTheNextIn(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		g.Enqueue(sluice.OutcomeAdded, of("a", "a1"))
		g.Enqueue(sluice.OutcomeAdded, of("a", "a2"))
		q, err := sluice.NewQueue(g.RDB, g.Q.Name())
		require.NoError(g, err)
		es, err := q.Peek(g.Context(), 1)
		require.NoError(g, err)
		require.NoError(g, q.Dequeue(g.Context(), es...))
		g.requireState(sluice.StateDue, "a2")
	})
}

// TestGroup_TheFirstClaimOfAQueueLetsTheNextIn: a Queue that has met no task of a group buries one
// whose attempts are used up.
func TestGroup_TheFirstClaimOfAQueueLetsTheNextIn(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		g.Enqueue(sluice.OutcomeAdded, of("a", "a1"))
		g.Enqueue(sluice.OutcomeAdded, of("a", "a2"))
		require.NoError(g, g.Q.Retry(g.Context(), 0, "no", g.ClaimOne(time.Minute)))
		q, err := sluice.NewQueue(g.RDB, g.Q.Name(), sluice.WithMaxAttempts(1))
		require.NoError(g, err)
		_, err = q.Claim(g.Context(), 5, time.Minute)
		require.NoError(g, err)
		g.requireState(sluice.StateDead, "a1")
		g.requireState(sluice.StateDue, "a2")
	})
}

// TestGroup_AVersionThatTakesOverByAClaimIsNotBeforeOthers: it is due later than one that waits,
// which takes its place.
func TestGroup_AVersionThatTakesOverByAClaimIsNotBeforeOthers(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		g.Enqueue(sluice.OutcomeAdded, of("a", "a1"))
		g.ClaimOne(2 * time.Second)
		g.Enqueue(sluice.OutcomeAdded, of("a", "a2"))
		g.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "a1", Group: "a", Delay: time.Hour})
		time.Sleep(2050 * time.Millisecond) // the lease
		g.Claim(1, time.Minute)
		g.requireState(sluice.StateDue, "a2")
		g.requireState(sluice.StateWaiting, "a1")
	})
}

// TestGroup_AnEntryOfAnotherQueueLetsTheNextIn: it says that its task is in a group.
func TestGroup_AnEntryOfAnotherQueueLetsTheNextIn(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		g.Enqueue(sluice.OutcomeAdded, of("a", "a1"))
		g.Enqueue(sluice.OutcomeAdded, of("a", "a2"))
		require.NoError(g, g.On(g.RDB).Dequeue(g.Context(), g.ClaimOne(time.Minute)))
		g.requireState(sluice.StateDue, "a2")
	})
}

// TestGroup_AWorkerSeesWhatIsElsewhereSince: a Queue that does not know of groups has finished the
// task in play, and its ID is a plain task's now. A worker lets the next in all the same.
func TestGroup_AWorkerSeesWhatIsElsewhereSince(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		g.Enqueue(sluice.OutcomeAdded, of("a", "a1"))
		g.Enqueue(sluice.OutcomeAdded, of("a", "a2"))
		e := g.ClaimOne(time.Minute)
		require.NoError(g, g.On(g.RDB).Dequeue(g.Context(), sluice.Entry{ID: e.ID, Score: e.Score}))
		g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a1", Delay: time.Hour})
		begun := make(chan string, 2)
		stop := systest.StartWorker(g.T, &sluice.Worker{Queue: g.On(g.RDB), Handler: func(_ context.Context, e sluice.Entry) error {
			begun <- e.ID
			return nil
		}})
		select {
		case id := <-begun:
			require.Equal(g, "a2", id)
		case <-time.After(30 * time.Second):
			g.Fatal("the group is held up")
		}
		require.NoError(g, stop())
	})
}
