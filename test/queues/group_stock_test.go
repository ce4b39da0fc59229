package queues

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// phoneOf is a task of a group that takes a phone.
func phoneOf(group, id string) sluice.Task {
	return sluice.Task{ID: id, Group: group, Take: sluice.Take{Item: "phone"}}
}

// TestGroup_WithUnits: a task that waits in its group holds its units; how it ends decides.
func TestGroup_WithUnits(t *testing.T) {
	eachStock(t, 3, func(s stock) {
		g := grouped{s.QueueTest}
		for _, id := range []string{"1", "2", "3"} {
			s.Enqueue(sluice.OutcomeAdded, phoneOf("a", id))
		}
		s.Enqueue(sluice.OutcomeSoldOut, phoneOf("a", "4"))
		outcomes, err := s.Q.EnqueueBatch(s.Context(), []sluice.Task{phoneOf("a", "2"), phoneOf("a", "4"), phoneOf("b", "3")})
		require.ErrorIs(s, err, sluice.ErrInvalid)
		require.Equal(s, []sluice.Outcome{sluice.OutcomeKept, sluice.OutcomeSoldOut, 0}, outcomes)
		g.requireWaiting("2", "3")
		s.requireStock(0, 3, 0)

		e := s.ClaimOne(time.Minute)
		require.Equal(s, "a", e.Group)
		require.Equal(s, sluice.Take{Item: "phone", Units: 1}, e.Take)
		require.Empty(s, s.Claim(1, time.Minute))
		require.NoError(s, s.Q.Dequeue(s.Context(), e))
		s.requireStock(0, 2, 1)
		state, err := s.Q.Cancel(s.Context(), "3")
		require.NoError(s, err)
		require.Equal(s, sluice.StateWaiting, state)
		s.requireStock(1, 1, 1)

		s.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "5", Group: "a"})
		e = s.ClaimOne(time.Minute)
		require.Equal(s, "2", e.ID)
		require.NoError(s, s.Q.Bury(s.Context(), "no", e))
		s.requireStock(1, 1, 1) // a dead letter holds its units
		g.requireState(sluice.StateDue, "5")
		_, err = s.Q.Revive(s.Context(), "2")
		require.NoError(s, err)
		g.requireWaiting("2")
		require.NoError(s, s.Q.Dequeue(s.Context(), s.ClaimOne(time.Minute)))
		es, err := s.Q.Pop(s.Context(), 1)
		require.NoError(s, err)
		require.Equal(s, "2", es[0].ID)
		require.Equal(s, sluice.Take{Item: "phone", Units: 1}, es[0].Take)
		s.requireStock(1, 0, 2)
		s.RequireClean()
	})
}

// TestGroup_WithOtherUnitsIsInvalid: nothing changes then.
func TestGroup_WithOtherUnitsIsInvalid(t *testing.T) {
	eachStock(t, 9, func(s stock) {
		require.NoError(s, s.Q.SetStock(s.Context(), "tv", 9))
		s.Enqueue(sluice.OutcomeAdded, phoneOf("a", "both"))
		s.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "grouped", Group: "a"})
		s.Enqueue(sluice.OutcomeAdded, phone("takes"))
		s.Enqueue(sluice.OutcomeAdded, phoneOf("a", "waits"))
		s.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "plain"})
		for _, id := range []string{"both", "grouped", "takes", "waits", "plain"} {
			for name, task := range map[string]sluice.Task{
				"both":    phoneOf("a", id),
				"item":    {ID: id, Group: "a", Take: sluice.Take{Item: "tv"}},
				"group":   phoneOf("b", id),
				"grouped": {ID: id, Group: "a"},
				"takes":   phone(id),
			} {
				before, err := s.Q.Get(s.Context(), id)
				require.NoError(s, err)
				isSame := name == id || id == "waits" && name == "both"
				_, err = s.Q.Enqueue(s.Context(), task)
				if isSame {
					require.NoError(s, err)
				} else {
					require.ErrorIs(s, err, sluice.ErrInvalid, "%s as %s", id, name)
				}
				after, err := s.Q.Get(s.Context(), id)
				require.NoError(s, err)
				require.True(s, id == "grouped" && isSame || before.Score == after.Score && before.Group == after.Group && before.Take == after.Take, "%s as %s", id, name)
			}
		}
		s.requireStock(6, 3, 0)
	})
}

// TestGroup_UnitsOfTasksThatAreNoMoreComeBack: a foreign consumer has removed the task in play. A
// worker puts its units back, and leaves those of the tasks that wait alone.
func TestGroup_UnitsOfTasksThatAreNoMoreComeBack(t *testing.T) {
	eachStock(t, 3, func(s stock) {
		for _, id := range []string{"1", "2", "3"} {
			s.Enqueue(sluice.OutcomeAdded, phoneOf("a", id))
		}
		require.NoError(s, s.RDB.ZRem(s.Context(), s.Key, "1").Err())
		begun := make(chan string, 3)
		stop := systest.StartWorker(s.T, &sluice.Worker{Queue: s.On(s.RDB), Grace: time.Millisecond, Handler: func(ctx context.Context, e sluice.Entry) error {
			begun <- e.ID
			<-ctx.Done()
			return ctx.Err()
		}})
		require.Equal(s, "2", <-begun)
		s.requireStock(1, 2, 0)
		require.NoError(s, stop())
		s.requireStock(1, 2, 0)
		require.NoError(s, s.RDB.ZRem(s.Context(), s.Key, "2").Err())
		s.Enqueue(sluice.OutcomeAdded, phoneOf("a", "2")) // its units were put back, and taken again
		s.requireStock(1, 2, 0)
	})
}

// TestGroup_WhoDoesNotKnowOfTheUnitsEndsThem: an entry from elsewhere, of which only ID and receipt
// are known. A worker sees to the units, and to the group.
func TestGroup_WhoDoesNotKnowOfTheUnitsEndsThem(t *testing.T) {
	eachStock(t, 3, func(s stock) {
		s.Enqueue(sluice.OutcomeAdded, phoneOf("a", "1"))
		s.Enqueue(sluice.OutcomeAdded, phoneOf("a", "2"))
		e := s.ClaimOne(time.Minute)
		require.NoError(s, s.On(s.RDB).Dequeue(s.Context(), sluice.Entry{ID: e.ID, Score: e.Score}))
		s.requireStock(1, 2, 0)
		stop := systest.StartWorker(s.T, &sluice.Worker{Queue: s.On(s.RDB), Handler: func(context.Context, sluice.Entry) error { return nil }})
		s.Eventually(func() bool {
			info, err := s.Q.Stock(s.Context(), "phone")
			return err == nil && info.Sold == 2
		})
		require.NoError(s, stop())
		s.requireStock(1, 0, 2)
		s.RequireClean()
	})
}
