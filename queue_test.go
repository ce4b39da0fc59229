package sluice_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/systest"
)

func TestQueue_HandsOutATaskOnceWhenItIsDue(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("x\x00:y"), Delay: time.Hour})
		require.Empty(b, b.Claim(1, time.Second), "early")
		_, err := b.Q.Reschedule(ctx, "a", 100*time.Millisecond)
		require.NoError(b, err)
		e := b.Get("a")
		require.Equal(b, []byte("x\x00:y"), e.Payload)
		require.Zero(b, e.Attempt)

		require.NoError(b, b.Q.Wait(ctx))
		claimed := b.ClaimOne(time.Minute)
		require.Equal(b, "a", claimed.ID)
		require.Equal(b, []byte("x\x00:y"), claimed.Payload)
		require.Equal(b, 1, claimed.Attempt)
		require.GreaterOrEqual(b, claimed.Score-60, e.Score-1e-6, "claimed early, by the server's clock")
		require.LessOrEqual(b, claimed.Score-60, b.Now())
		require.Empty(b, b.Claim(1, time.Second), "handed out twice")
		require.Equal(b, e.Due, claimed.Due)
		require.Equal(b, systest.LeasedInfo(claimed, time.Minute), b.Get("a"))

		require.NoError(b, b.Q.Dequeue(ctx, claimed))
		require.ErrorIs(b, b.Q.Dequeue(ctx, claimed), sluice.ErrStale)
		_, err = b.Q.Get(ctx, "a")
		require.ErrorIs(b, err, sluice.ErrNotFound)
		b.RequireClean()
	})
}

func TestQueue_HandsOutATaskAgainWhenItsLeaseHasEnded(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		first := b.ClaimOne(4 * time.Second)
		require.NoError(b, b.Q.Wait(ctx))
		second := b.ClaimOne(time.Minute)
		require.Equal(b, 1, second.Attempt, "the first delivery was perhaps never seen")
		require.GreaterOrEqual(b, second.Score-60, first.Score, "taken before the lease had ended")

		// Whatever the first holder says now changes nothing.
		require.ErrorIs(b, b.Q.Dequeue(ctx, first), sluice.ErrStale)
		require.ErrorIs(b, b.Q.Retry(ctx, 0, "failed", first), sluice.ErrStale)
		require.ErrorIs(b, b.Q.Release(ctx, first), sluice.ErrStale)
		require.ErrorIs(b, b.Q.Extend(ctx, first, time.Second), sluice.ErrStale)
		require.Equal(b, systest.LeasedInfo(second, time.Minute), b.Get("a"))
	})
}

// However short its lease is, a Claim hands out no task twice: it does not claim again what
// is due again while it collects.
func TestQueue_ClaimHandsOutATaskOnceACall(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		tasks := make([]sluice.Task, b.Sized(2000))
		for i := range tasks {
			tasks[i].ID = strconv.Itoa(i)
		}
		_, err := b.Q.EnqueueBatch(b.Context(), tasks)
		require.NoError(b, err)
		b.Eventually(func() bool { return b.Stats().Due == int64(len(tasks)) })
		for range 3 {
			es, err := b.Q.Claim(b.Context(), 1_000_000, 5*time.Millisecond)
			if err != nil { // on a busy machine the first reply may be late
				require.ErrorIs(b, err, sluice.ErrLost)
			}
			require.Equal(b, len(es), systest.DifferentIDs(es), "handed out twice")
		}
		require.Zero(b, b.Stats().Dead)
	})
}

func TestQueue_ExtendRetryAndReleaseMoveATask(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("p")})
		e := b.ClaimOne(10 * time.Second)

		require.NoError(b, b.Q.Extend(ctx, e, time.Minute))
		extended := store.ScoreOf(b.Get("a").LeaseEnds)
		require.GreaterOrEqual(b, extended, e.Score+50, "the new lease counts from the extension")
		require.LessOrEqual(b, extended, b.Now()+60)

		require.NoError(b, b.Q.Retry(ctx, 50*time.Millisecond, "failed", e), "the receipt is good for the whole attempt")
		require.ErrorIs(b, b.Q.Extend(ctx, e, time.Hour), sluice.ErrStale, "it is used up")
		require.ErrorIs(b, b.Q.Retry(ctx, 0, "failed", e), sluice.ErrStale)
		due := b.Get("a").Score
		require.NoError(b, b.Q.Wait(ctx))
		again := b.ClaimOne(time.Minute)
		require.GreaterOrEqual(b, again.Score-60, due-1e-6, "claimed before its delay was over")
		require.Equal(b, 2, again.Attempt, "a retry is an attempt")
		require.Equal(b, []byte("p"), again.Payload)

		require.NoError(b, b.Q.Release(ctx, again))
		released := b.ClaimOne(time.Minute)
		require.Equal(b, 2, released.Attempt, "a release is none")
		require.NoError(b, b.Q.Dequeue(ctx, released))

		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "plain"})
		require.NoError(b, b.Q.Release(ctx, b.ClaimOne(time.Minute)))
		require.Zero(b, b.RDB.Exists(ctx, "{"+b.Key+"}:tasks", "{"+b.Key+"}:state").Val(), "a plain task that was never begun needs no field")
	})
}

func TestQueue_PopRemovesWhatPeekShows(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "later", Delay: time.Hour})
		_, err := b.Q.EnqueueBatch(ctx, []sluice.Task{{ID: "z"}, {ID: "y", Payload: []byte("p")}, {ID: "x"}})
		require.NoError(b, err)
		require.NoError(b, b.Q.Wait(ctx))

		peeked, err := b.Q.Peek(ctx, 2)
		require.NoError(b, err)
		require.Equal(b, []string{"z", "y"}, systest.IDs(peeked), "a batch keeps its order")
		require.NoError(b, b.Q.Dequeue(ctx, peeked[0]))

		popped, err := b.Q.Pop(ctx, 9)
		require.NoError(b, err)
		require.Equal(b, []string{"y", "x"}, systest.IDs(popped))
		require.Equal(b, []byte("p"), popped[0].Payload)
		require.ErrorIs(b, b.Q.Dequeue(ctx, peeked[1]), sluice.ErrStale)
		empty, err := b.Q.Pop(ctx, 9)
		require.NoError(b, err)
		require.Empty(b, empty)
		require.Equal(b, int64(1), b.RDB.ZCard(ctx, b.Key).Val())
		require.Zero(b, b.RDB.Exists(ctx, "{"+b.Key+"}:tasks", "{"+b.Key+"}:state").Val())
	})
}

func TestQueue_DuplicatesFollowThePolicy(t *testing.T) {
	const sooner, base, later = time.Hour, 2 * time.Hour, 3 * time.Hour
	for _, test := range []struct {
		policy    sluice.Duplicates
		delay     time.Duration
		want      sluice.Outcome
		wantDelay time.Duration
	}{
		{sluice.DuplicatesReplace, sooner, sluice.OutcomeUpdated, sooner},
		{sluice.DuplicatesReplace, later, sluice.OutcomeUpdated, later},
		{sluice.DuplicatesKeep, sooner, sluice.OutcomeKept, base},
		{sluice.DuplicatesKeep, later, sluice.OutcomeKept, base},
		{sluice.DuplicatesEarliest, sooner, sluice.OutcomeUpdated, sooner},
		{sluice.DuplicatesEarliest, later, sluice.OutcomeKept, base},
		{sluice.DuplicatesLatest, sooner, sluice.OutcomeKept, base},
		{sluice.DuplicatesLatest, later, sluice.OutcomeUpdated, later},
	} {
		t.Run(fmt.Sprintf("%d/%v", test.policy, test.delay), func(t *testing.T) {
			systest.EachQueue(t, func(b systest.QueueTest) {
				now := time.Now()
				b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("old"), Delay: base})
				b.Enqueue(test.want, sluice.Task{ID: "a", Payload: []byte("new"), Delay: test.delay})
				b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "plain", Delay: base})
				b.Enqueue(test.want, sluice.Task{ID: "plain", Delay: test.delay})
				outcomes, err := b.Q.EnqueueBatch(b.Context(), []sluice.Task{{ID: "both", Delay: base}, {ID: "both", Delay: test.delay}})
				require.NoError(b, err)
				require.Equal(b, []sluice.Outcome{sluice.OutcomeAdded, test.want}, outcomes)
				for _, id := range []string{"a", "plain", "both"} {
					require.WithinDuration(b, now.Add(test.wantDelay), b.Get(id).Due, time.Minute, id)
				}
				want := "old"
				if test.want == sluice.OutcomeUpdated {
					want = "new"
				}
				require.Equal(b, want, string(b.Get("a").Payload))
			}, sluice.WithDuplicates(test.policy))
		})
	}
}

// A new version starts with no attempts, whatever the old one had.
func TestQueue_ReplaceStartsAnew(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("old")})
		require.NoError(b, b.Q.Retry(b.Context(), time.Hour, "failed", b.ClaimOne(time.Minute)))
		b.Enqueue(sluice.OutcomeUpdated, sluice.Task{ID: "a"})
		e := b.ClaimOne(time.Minute)
		require.Equal(b, 1, e.Attempt)
		require.Empty(b, e.Payload)
	})
}

func TestQueue_DeferredVersionTakesOver(t *testing.T) {
	// How the holder of the old version ends.
	ends := map[string]func(b systest.QueueTest, e sluice.Entry){
		"dequeue": func(b systest.QueueTest, e sluice.Entry) { require.NoError(b, b.Q.Dequeue(b.Context(), e)) },
		"retry": func(b systest.QueueTest, e sluice.Entry) {
			require.NoError(b, b.Q.Retry(b.Context(), time.Hour, "failed", e))
		},
		"release": func(b systest.QueueTest, e sluice.Entry) { require.NoError(b, b.Q.Release(b.Context(), e)) },
		"bury":    func(b systest.QueueTest, e sluice.Entry) { require.NoError(b, b.Q.Bury(b.Context(), "", e)) },
		"crash":   systest.QueueTest.EndLeaseSoon,
		"extend, dequeue": func(b systest.QueueTest, e sluice.Entry) {
			require.NoError(b, b.Q.Extend(b.Context(), e, time.Minute))
			require.NoError(b, b.Q.Dequeue(b.Context(), e))
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			systest.EachQueue(t, func(b systest.QueueTest) {
				b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("v1")})
				e := b.ClaimOne(time.Minute)
				b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "a", Payload: []byte("v2")})
				b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "a", Payload: []byte("v3")})
				require.Empty(b, b.Claim(1, time.Minute), "worked on twice at once")

				end(b, e)
				var next []sluice.Entry
				b.Eventually(func() bool { next = b.Claim(10, time.Minute); return len(next) > 0 })
				require.Len(b, next, 1)
				require.Equal(b, "v3", string(next[0].Payload), "an update was lost")
				require.Equal(b, 1, next[0].Attempt)
				require.ErrorIs(b, b.Q.Dequeue(b.Context(), e), sluice.ErrStale)
				require.NoError(b, b.Q.Dequeue(b.Context(), next[0]))
				b.RequireClean()
			})
		})
	}
}

// The new version is not early because the old one was finished or popped early, or
// because its holder crashed.
func TestQueue_DeferredVersionKeepsItsOwnTime(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		for _, id := range []string{"done", "crashed"} {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id})
			e := b.ClaimOne(time.Minute)
			b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: id, Delay: time.Hour})
			if id == "done" {
				require.NoError(b, b.Q.Dequeue(ctx, e))
			} else {
				b.EndLeaseSoon(e)
				b.Eventually(func() bool { return b.Get(id).Due.After(store.TimeOf(e.Score).Add(time.Minute)) })
			}
			require.Empty(b, b.Claim(1, time.Minute))
			popped, err := b.Q.Pop(ctx, 9)
			require.NoError(b, err)
			require.Empty(b, popped)
			require.InDelta(b, 3600, b.Get(id).Score-e.Score, 60)
		}
		require.Equal(b, int64(2), b.Stats().Scheduled)
	})
}

// When a lease ends and a deferred version takes over, Peek and Get return a receipt of
// that version, as good as any other.
func TestQueue_PeekReturnsTheReceiptOfADeferredVersion(t *testing.T) {
	for name, end := range map[string]func(b systest.QueueTest, e sluice.Entry) error{
		"dequeue": func(b systest.QueueTest, e sluice.Entry) error { return b.Q.Dequeue(b.Context(), e) },
		"retry":   func(b systest.QueueTest, e sluice.Entry) error { return b.Q.Retry(b.Context(), time.Hour, "failed", e) },
		"release": func(b systest.QueueTest, e sluice.Entry) error { return b.Q.Release(b.Context(), e) },
		"bury":    func(b systest.QueueTest, e sluice.Entry) error { return b.Q.Bury(b.Context(), "", e) },
	} {
		t.Run(name, func(t *testing.T) {
			systest.EachQueue(t, func(b systest.QueueTest) {
				b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
				e := b.ClaimOne(time.Minute)
				b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "a", Payload: []byte("v2")})
				b.EndLeaseSoon(e)
				var peeked []sluice.Entry
				b.Eventually(func() bool {
					var err error
					peeked, err = b.Q.Peek(b.Context(), 1)
					require.NoError(b, err)
					return len(peeked) == 1
				})
				require.Equal(b, peeked[0], b.Get("a").Entry)
				require.Equal(b, "v2", string(peeked[0].Payload))
				require.NoError(b, end(b, peeked[0]))
				require.ErrorIs(b, end(b, peeked[0]), sluice.ErrStale)
			})
		})
	}
}

// Deferred versions compete with each other as scheduled tasks do.
func TestQueue_DeferredVersionsFollowThePolicy(t *testing.T) {
	for policy, want := range map[sluice.Duplicates][]sluice.Outcome{
		sluice.DuplicatesKeep:     {sluice.OutcomeKept, sluice.OutcomeKept, sluice.OutcomeKept},
		sluice.DuplicatesReplace:  {sluice.OutcomeDeferred, sluice.OutcomeDeferred, sluice.OutcomeDeferred},
		sluice.DuplicatesEarliest: {sluice.OutcomeDeferred, sluice.OutcomeKept, sluice.OutcomeDeferred},
		sluice.DuplicatesLatest:   {sluice.OutcomeDeferred, sluice.OutcomeDeferred, sluice.OutcomeKept},
	} {
		t.Run(fmt.Sprint(policy), func(t *testing.T) {
			systest.EachQueue(t, func(b systest.QueueTest) {
				b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
				b.ClaimOne(time.Minute)
				for i, hours := range []time.Duration{2, 3, 1} {
					b.Enqueue(want[i], sluice.Task{ID: "a", Delay: hours * time.Hour})
				}
			}, sluice.WithDuplicates(policy))
		})
	}
}

func TestQueue_CancelsAndReschedules(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		for _, missing := range []func() (bool, error){
			func() (bool, error) { was, err := b.Q.Cancel(ctx, "a"); return was != sluice.StateAbsent, err },
			func() (bool, error) { return b.Q.Reschedule(ctx, "a", 0) },
		} {
			found, err := missing()
			require.NoError(b, err)
			require.False(b, found)
		}
		reschedule := func(delay time.Duration) {
			b.Helper()
			found, err := b.Q.Reschedule(ctx, "a", delay)
			require.NoError(b, err)
			require.True(b, found)
		}

		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("p"), Delay: time.Hour})
		reschedule(0)
		e := b.ClaimOne(time.Minute)
		require.Equal(b, "p", string(e.Payload))

		// Of a leased task: again, once the holder has finished.
		reschedule(0)
		require.Empty(b, b.Claim(1, time.Minute))
		require.NoError(b, b.Q.Dequeue(ctx, e))
		again := b.ClaimOne(time.Minute)
		require.Equal(b, "p", string(again.Payload))

		was, err := b.Q.Cancel(ctx, "a")
		require.NoError(b, err)
		require.Equal(b, sluice.StateLeased, was)
		require.ErrorIs(b, b.Q.Dequeue(ctx, again), sluice.ErrStale)
		b.RequireClean()
	})
}

func TestQueue_BuriesATaskWhoseAttemptsAreUsedUp(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "killer", Payload: []byte("p")})
		for attempt := 1; attempt <= 2; attempt++ {
			e := b.ClaimOne(time.Minute)
			require.Equal(b, attempt, e.Attempt)
			require.NoError(b, b.Q.Retry(ctx, 0, "failed", e))
		}
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "other"})
		require.Equal(b, []string{"other"}, systest.IDs(b.Claim(1, time.Minute)), "a task that is used up stood in the way")

		dead := b.Get("killer")
		require.Equal(b, 2, dead.Attempt)
		require.Equal(b, "p", string(dead.Payload))
		require.WithinDuration(b, time.Now(), dead.DiedAt, time.Minute)
		require.Equal(b, int64(1), b.Stats().Dead)
		require.Zero(b, b.Stats().Due)

		// Enqueued again it starts anew.
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "killer"})
		require.Zero(b, b.Stats().Dead)
		require.Equal(b, 1, b.ClaimOne(time.Minute).Attempt)
	}, sluice.WithMaxAttempts(2))
}

func TestQueue_BatchKeepsItsOrder(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		n := max(b.Sized(1203), 303) // more than a step
		tasks := make([]sluice.Task, n)
		for i := range tasks {
			tasks[i] = sluice.Task{ID: fmt.Sprint(n - i)} // so that order by ID would be another one
		}
		tasks[n/2].ID = tasks[3].ID
		outcomes, err := b.Q.EnqueueBatch(ctx, tasks)
		require.NoError(b, err)
		require.Len(b, outcomes, n)
		require.Equal(b, sluice.OutcomeAdded, outcomes[3])
		require.Equal(b, sluice.OutcomeUpdated, outcomes[n/2], "duplicates in a batch are applied in order")

		b.Eventually(func() bool { return b.Stats().Due == int64(n-1) })
		claimed := b.Claim(2*n, time.Minute)
		want := []string{}
		for i, task := range tasks {
			if i != 3 {
				want = append(want, task.ID)
			}
		}
		require.Equal(b, want, systest.IDs(claimed))
		claimed[5].Score++
		err = b.Q.Dequeue(ctx, claimed...)
		var stale *sluice.StaleError
		require.ErrorAs(b, err, &stale)
		require.Equal(b, []string{claimed[5].ID}, stale.IDs)
		require.Equal(b, int64(1), b.Stats().Leased)

		claimed[5].Score--
		require.NoError(b, b.Q.Release(ctx, claimed[5]))
		require.NoError(b, b.Q.Purge(ctx))
		b.RequireClean()
		outcomes, err = b.Q.EnqueueBatch(ctx, nil)
		require.NoError(b, err)
		require.Empty(b, outcomes)
		require.NoError(b, b.Q.Dequeue(ctx))
	})
}

// A batch moves only those tasks apart that are due at the same time. No delay is not
// the same as 1970; a nanosecond is the same as a microsecond.
func TestQueue_BatchSetsOnlyEqualTimesApart(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		outcomes, err := b.Q.EnqueueBatch(b.Context(), []sluice.Task{
			{ID: "a"}, {ID: "b", At: time.Unix(0, 0)}, {ID: "c", Delay: time.Microsecond}, {ID: "d", Delay: 1},
		})
		require.NoError(b, err)
		require.Len(b, outcomes, 4)
		require.Zero(b, b.Get("b").Score)
		require.Greater(b, b.Get("d").Score, b.Get("c").Score)
	})
}

func TestQueue_StatsCountDueAndScheduled(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		require.Equal(b, sluice.Stats{}, b.Stats())
		ago, ahead := time.Now().Add(-time.Hour).Truncate(time.Microsecond), time.Now().Add(time.Hour).Truncate(time.Microsecond)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "due", At: ago})
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "next", At: ahead})
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "later", At: ahead.Add(time.Hour)})
		s := b.Stats()
		require.Equal(b, int64(1), s.Due)
		require.Equal(b, int64(2), s.Scheduled)
		require.InDelta(b, 3600, s.Lateness.Seconds(), 10)
		require.True(b, ahead.Equal(s.NextDue), "%v, not %v", s.NextDue, ahead)
	})
}

func TestQueue_ReceiptIsGoodOnceWithinACall(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		e := b.ClaimOne(time.Minute)
		var stale *sluice.StaleError
		require.ErrorAs(b, b.Q.Dequeue(b.Context(), e, e), &stale)
		require.Equal(b, []string{"a"}, stale.IDs)
		b.RequireClean()
	})
}

// A notification ends Wait when a task is due before all others, whichever call has put
// it there. The poll interval is too long to be the reason.
func TestQueue_WaitEndsWhenANewHeadIsDue(t *testing.T) {
	enqueue := func(tasks ...sluice.Task) func(b systest.QueueTest) error {
		return func(b systest.QueueTest) error {
			_, err := b.Q.EnqueueBatch(b.Context(), tasks)
			return err
		}
	}
	payload := []byte("p")
	for name, put := range map[string]func(b systest.QueueTest) error{
		"one":               enqueue(sluice.Task{ID: "a"}),
		"one with payload":  enqueue(sluice.Task{ID: "a", Payload: payload}),
		"one again":         enqueue(sluice.Task{ID: "later"}),
		"many":              enqueue(sluice.Task{ID: "x", Delay: time.Hour}, sluice.Task{ID: "a"}, sluice.Task{ID: "y", Delay: time.Hour}),
		"many with payload": enqueue(sluice.Task{ID: "x", Delay: time.Hour}, sluice.Task{ID: "a", Payload: payload}),
		"moved on at once":  enqueue(sluice.Task{ID: "a"}, sluice.Task{ID: "a", Delay: time.Second}),
		"rescheduled": func(b systest.QueueTest) error {
			_, err := b.Q.Reschedule(b.Context(), "later", 0)
			return err
		},
		"revived": func(b systest.QueueTest) error {
			_, err := b.Q.Revive(b.Context(), "dead")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			systest.EachQueue(t, func(b systest.QueueTest) {
				b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "dead"})
				b.Bury(b.ClaimOne(time.Minute), "")
				b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "later", Delay: 30 * time.Minute})
				ctx, cancel := context.WithTimeout(b.Context(), 30*time.Second)
				defer cancel()
				woken := make(chan error, 1)
				go func() { woken <- b.Q.Wait(ctx) }()
				b.Eventually(func() bool { return systest.InLine(ctx, b.RDB, b.Key) == 1 })
				require.NoError(b, put(b))
				require.NoError(b, <-woken)
			}, sluice.WithPollInterval(time.Minute))
		})
	}
}
