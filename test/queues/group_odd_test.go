package queues

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestGroup_AVersionThatTakesOverHoldsNobodyUp: the lease of its holder has run out, and it is due
// later than what waits.
func TestGroup_AVersionThatTakesOverHoldsNobodyUp(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		g.Enqueue(sluice.OutcomeAdded, of("a", "1"))
		g.Enqueue(sluice.OutcomeAdded, of("a", "2"))
		require.Equal(g, "1", g.ClaimOne(2*time.Second).ID)
		g.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "1", Group: "a", Delay: 10 * time.Hour})
		var es []sluice.Entry
		g.Eventually(func() bool {
			es = g.Claim(1, time.Minute)
			return len(es) > 0
		})
		require.Equal(g, "2", es[0].ID)
		g.requireWaiting("1")
	})
}

// TestGroup_EqualTimesDoNotChangePlaces, whatever the last bits of the sums are that the server
// makes of them.
func TestGroup_EqualTimesDoNotChangePlaces(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		for i := range 40 {
			group := fmt.Sprint(i)
			g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "c" + group, Group: group, Delay: time.Hour + time.Duration(i*100003)*time.Microsecond})
			c, err := g.Q.Get(g.Context(), "c"+group)
			require.NoError(g, err)
			g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "b" + group, Group: group, At: c.Due})
			g.requireState(sluice.StateScheduled, "c"+group)
		}
	})
}

// TestGroup_WhatAForeignProducerAddedLeavesNoPlace: the task has run, and waits in another group.
func TestGroup_WhatAForeignProducerAddedLeavesNoPlace(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		g.Enqueue(sluice.OutcomeAdded, of("a", "1"))
		g.Enqueue(sluice.OutcomeAdded, of("a", "w"))
		require.NoError(g, g.RDB.ZAdd(g.Context(), g.Key, redis.Z{Score: 1, Member: "w"}).Err())
		es := g.Claim(10, time.Minute)
		require.Len(g, es, 2)
		require.Equal(g, "w", es[0].ID)
		require.NoError(g, g.Q.Dequeue(g.Context(), es[0]))
		g.Enqueue(sluice.OutcomeAdded, of("b", "2"))
		g.Enqueue(sluice.OutcomeAdded, of("b", "w"))
		require.NoError(g, g.Q.Dequeue(g.Context(), es[1]))
		g.requireState(sluice.StateWaiting, "w")
	})
}

// TestGroup_TheBeginningOfTimeIsADueTime: servers write what is so near to 0 with an exponent.
func TestGroup_TheBeginningOfTimeIsADueTime(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		at := time.Unix(0, 0)
		if g.Backend == "miniredis" { // whose Lua does not read 1e-06 as a number
			at = time.Unix(1, 0)
		}
		outcomes, err := g.Q.EnqueueBatch(g.Context(), []sluice.Task{{ID: "1", Group: "a", At: at}, {ID: "2", Group: "a", At: at}, {ID: "3", Group: "a", At: at}})
		require.NoError(g, err)
		require.Equal(g, []sluice.Outcome{sluice.OutcomeAdded, sluice.OutcomeAdded, sluice.OutcomeAdded}, outcomes)
		for _, id := range []string{"1", "2", "3"} {
			e := g.ClaimOne(time.Minute)
			require.Equal(g, id, e.ID)
			require.NoError(g, g.Q.Dequeue(g.Context(), e))
		}
	})
}

// TestGroup_WhatWaitsIsNotDone, although a task of its ID was.
func TestGroup_WhatWaitsIsNotDone(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		g.Enqueue(sluice.OutcomeAdded, of("a", "2"))
		require.NoError(g, g.Q.Dequeue(g.Context(), g.ClaimOne(time.Minute)))
		g.Enqueue(sluice.OutcomeAdded, of("a", "1"))
		g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "2", Group: "a", Duplicates: sluice.DuplicatesKeep})
		g.requireState(sluice.StateWaiting, "2")
		done, err := g.Q.List(g.Context(), sluice.StateDone, sluice.TaskInfo{}, 10)
		require.NoError(g, err)
		require.Empty(g, done)
		g.Enqueue(sluice.OutcomeKept, sluice.Task{ID: "2", Duplicates: sluice.DuplicatesOnce})
	}, sluice.WithRetention(time.Hour))
}

// TestGroup_APlainTaskReplacesADeadLetter, in whatever group that was.
func TestGroup_APlainTaskReplacesADeadLetter(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		g.Enqueue(sluice.OutcomeAdded, of("a", "1"))
		require.NoError(g, g.Q.Bury(g.Context(), "no", g.ClaimOne(time.Minute)))
		g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "1"})
		require.Empty(g, g.ClaimOne(time.Minute).Group)
	})
}

// TestGroup_ANewVersionHasAReceiptOfItsOwn, although it waits, and is due when the one before was.
func TestGroup_ANewVersionHasAReceiptOfItsOwn(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		at := time.Now().Add(-time.Hour)
		g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "1", Group: "a", At: at.Add(-time.Hour)})
		g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "2", Group: "a", At: at})
		before, err := g.Q.Get(g.Context(), "2")
		require.NoError(g, err)
		g.Enqueue(sluice.OutcomeUpdated, sluice.Task{ID: "2", Group: "a", At: at, Payload: []byte("new")})
		require.NoError(g, g.Q.Dequeue(g.Context(), g.ClaimOne(time.Minute)))
		require.ErrorIs(g, g.Q.Dequeue(g.Context(), before.Entry), sluice.ErrStale)
		require.Equal(g, "new", string(g.ClaimOne(time.Minute).Payload))
	})
}

// TestGroup_AReleaseForgetsNoDelivery that was not counted: of these there are two at most.
func TestGroup_AReleaseForgetsNoDelivery(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		g.Enqueue(sluice.OutcomeAdded, of("a", "1"))
		g.ClaimOne(500 * time.Millisecond)
		var es []sluice.Entry
		g.Eventually(func() bool {
			es = g.Claim(1, time.Minute)
			return len(es) > 0
		})
		require.NoError(g, g.Q.Release(g.Context(), es[0]))
		require.Equal(g, "@1:a+1::", g.RDB.HGet(g.Context(), "{"+g.Key+"}:state", "1").Val())
	})
}

// TestGroup_WhatIsElsewhereSinceHasNoPlace: a Queue that does not know of groups has finished the
// task, and it was enqueued in another one.
func TestGroup_WhatIsElsewhereSinceHasNoPlace(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		g.Enqueue(sluice.OutcomeAdded, of("a", "1"))
		e := g.ClaimOne(time.Minute)
		require.NoError(g, g.On(g.RDB).Dequeue(g.Context(), sluice.Entry{ID: e.ID, Score: e.Score}))
		g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "1", Group: "b", Delay: 2 * time.Hour})
		g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "2", Group: "a", Delay: time.Hour})
		g.requireState(sluice.StateScheduled, "1", "2")
	})
}

// TestGroup_APageDoesNotStandStill: a foreign producer has given a task that waits a score, which is
// later than its own due time. A page that begins behind that time must not show it again.
func TestGroup_APageDoesNotStandStill(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "plays", Group: "a", Delay: time.Hour})
		g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "waits", Group: "a", Delay: 2 * time.Hour})
		score := float64(time.Now().Add(3 * time.Hour).Unix())
		require.NoError(g, g.RDB.ZAdd(g.Context(), g.Key, redis.Z{Score: score, Member: "waits"}).Err())
		var after sluice.TaskInfo
		for range 2 {
			page, err := g.Q.List(g.Context(), sluice.StateScheduled, after, 1)
			require.NoError(g, err)
			if len(page) == 0 {
				return
			}
			require.Equal(g, "plays", page[0].ID)
			after = page[0]
		}
		g.Fatal("there is no end")
	})
}

// TestGroup_WhatHasWaitedHasItsOwnPlaceAgain, to the last bit: its receipt is good as before, and that
// of a version from before is as bad as before.
func TestGroup_WhatHasWaitedHasItsOwnPlaceAgain(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		at := time.Now().Add(time.Hour)
		for i := range 20 {
			group := fmt.Sprint(i)
			due := at.Add(time.Duration(i*100003) * time.Microsecond)
			wait := func() {
				g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "first" + group, Group: group, At: at.Add(-time.Minute)})
				g.requireState(sluice.StateWaiting, group)
				_, err := g.Q.Cancel(g.Context(), "first"+group)
				require.NoError(g, err)
				g.requireState(sluice.StateScheduled, group)
			}
			get := func() sluice.Entry {
				info, err := g.Q.Get(g.Context(), group)
				require.NoError(g, err)
				return info.Entry
			}
			g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: group, Group: group, At: due})
			old := get()
			g.Enqueue(sluice.OutcomeUpdated, sluice.Task{ID: group, Group: group, At: due, Payload: []byte("new")})
			is := get()
			wait()
			require.Equal(g, is, get())
			require.ErrorIs(g, g.Q.Dequeue(g.Context(), old), sluice.ErrStale)
			wait()
			require.NoError(g, g.Q.Dequeue(g.Context(), is))
		}
	})
}
