package queues

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// of is a task of a group.
func of(group, id string) sluice.Task { return sluice.Task{ID: id, Group: group} }

// grouped is a queue with groups.
type grouped struct{ systest.QueueTest }

func eachGrouped(t *testing.T, test func(g grouped), opts ...sluice.QueueOption) {
	systest.EachQueue(t, func(b systest.QueueTest) { test(grouped{b}) }, opts...)
}

// requireState compares where a task is.
func (g grouped) requireState(want sluice.State, ids ...string) {
	g.Helper()
	for _, id := range ids {
		t, err := g.Q.Get(g.Context(), id)
		require.NoError(g, err, id)
		require.Equal(g, want, t.State, id)
	}
}

// requireWaiting compares which tasks wait.
func (g grouped) requireWaiting(want ...string) {
	g.Helper()
	var ids []string
	for t, err := range g.Q.All(g.Context(), sluice.StateWaiting) {
		require.NoError(g, err)
		require.Equal(g, sluice.StateWaiting, t.State)
		ids = append(ids, t.ID)
	}
	require.Equal(g, want, ids)
	s, err := g.Q.Stats(g.Context())
	require.NoError(g, err)
	require.EqualValues(g, len(want), s.GroupWaiting)
}

// TestGroup_IsAnOrder: one after the other, the earliest due first; other groups and plain tasks go
// on.
func TestGroup_IsAnOrder(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		for _, id := range []string{"a1", "a2", "a3"} {
			g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id, Group: "a", Kind: "k", Payload: []byte("p" + id)})
		}
		g.Enqueue(sluice.OutcomeAdded, of("b", "b1"))
		g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "plain"})
		g.requireState(sluice.StateDue, "a1", "b1", "plain")
		g.requireState(sluice.StateWaiting, "a2", "a3")
		g.requireWaiting("a2", "a3")
		es := g.Claim(10, time.Minute)
		require.Len(g, es, 3)
		require.Equal(g, "a", es[0].Group)
		require.Equal(g, "a1", es[0].ID)
		require.Empty(g, g.Claim(10, time.Minute))
		require.NoError(g, g.Q.Dequeue(g.Context(), es...))
		for _, id := range []string{"a2", "a3"} {
			e := g.ClaimOne(time.Minute)
			require.Equal(g, []string{id, "a", "k", "p" + id}, []string{e.ID, e.Group, e.Kind, string(e.Payload)})
			require.Empty(g, g.Claim(10, time.Minute))
			require.NoError(g, g.Q.Dequeue(g.Context(), e))
		}
		g.requireWaiting()
		g.RequireClean()
	})
}

// TestGroup_HowATaskEnds: each end lets the next one in, and what is tried again keeps its place.
func TestGroup_HowATaskEnds(t *testing.T) {
	ends := map[string]func(g grouped, e sluice.Entry) error{
		"dequeue": func(g grouped, e sluice.Entry) error { return g.Q.Dequeue(g.Context(), e) },
		"bury":    func(g grouped, e sluice.Entry) error { return g.Q.Bury(g.Context(), "no", e) },
		"cancel":  func(g grouped, e sluice.Entry) error { _, err := g.Q.Cancel(g.Context(), e.ID); return err },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			eachGrouped(t, func(g grouped) {
				g.Enqueue(sluice.OutcomeAdded, of("a", "1"))
				g.Enqueue(sluice.OutcomeAdded, of("a", "2"))
				e := g.ClaimOne(time.Minute)
				for range 2 { // it keeps its place
					require.NoError(g, g.Q.Retry(g.Context(), 0, "no", e))
					e = g.ClaimOne(time.Minute)
					require.Equal(g, "1", e.ID)
					require.NoError(g, g.Q.Release(g.Context(), e))
					e = g.ClaimOne(time.Minute)
					require.Equal(g, "1", e.ID)
				}
				g.requireState(sluice.StateWaiting, "2")
				require.NoError(g, end(g, e))
				g.requireState(sluice.StateDue, "2")
				require.Equal(g, "2", g.ClaimOne(time.Minute).ID)
			})
		})
	}
}

// TestGroup_WhatIsGivenBackKeepsItsPlace, also if the attempt does not count, and it is due later
// than those that wait.
func TestGroup_WhatIsGivenBackKeepsItsPlace(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		for _, id := range []string{"1", "2"} {
			g.Enqueue(sluice.OutcomeAdded, of("a", id))
		}
		require.NoError(g, g.Q.Release(g.Context(), g.ClaimOne(time.Minute)))
		g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "0", Group: "a", At: time.Now().Add(-time.Hour)})
		g.requireWaiting("0", "2")
		stop := systest.StartWorker(g.T, &sluice.Worker{Queue: g.On(g.RDB), Handler: func(context.Context, sluice.Entry) error {
			return sluice.Again(time.Hour)
		}})
		g.Eventually(func() bool { return g.Get("1").State == sluice.StateScheduled })
		require.NoError(g, stop())
		g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "00", Group: "a", At: time.Now().Add(-2 * time.Hour)})
		g.requireWaiting("00", "0", "2")
		require.Zero(g, g.Get("1").Attempt)
	})
}

// TestGroup_PopAndAttemptsUsedUp end a task, too.
func TestGroup_PopAndAttemptsUsedUp(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		for _, id := range []string{"1", "2", "3", "4"} {
			g.Enqueue(sluice.OutcomeAdded, of("a", id))
		}
		es, err := g.Q.Pop(g.Context(), 1)
		require.NoError(g, err)
		require.Equal(g, "1", es[0].ID)
		require.Equal(g, "a", es[0].Group)
		e := g.ClaimOne(time.Minute)
		require.Equal(g, "2", e.ID)
		require.NoError(g, g.Q.Retry(g.Context(), 0, "no", e))
		require.Empty(g, g.Claim(1, time.Minute), "its attempts are used up")
		g.requireState(sluice.StateDead, "2")
		require.Equal(g, "3", g.ClaimOne(time.Minute).ID)
		g.requireWaiting("4")
	}, sluice.WithMaxAttempts(1))
}

// TestGroup_TheEarliestIsInPlay: a task that is due sooner changes places with one that no worker
// has had.
func TestGroup_TheEarliestIsInPlay(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		later := func(id string, d time.Duration) sluice.Task { return sluice.Task{ID: id, Group: "a", Delay: d} }
		g.Enqueue(sluice.OutcomeAdded, later("3", 3*time.Hour))
		g.Enqueue(sluice.OutcomeAdded, later("2", 2*time.Hour))
		g.Enqueue(sluice.OutcomeAdded, later("4", 4*time.Hour))
		g.requireState(sluice.StateScheduled, "2")
		g.requireWaiting("3", "4")
		found, err := g.Q.Reschedule(g.Context(), "4", time.Hour)
		require.NoError(g, err)
		require.True(g, found)
		g.requireState(sluice.StateScheduled, "4")
		g.requireWaiting("2", "3")
		found, err = g.Q.Reschedule(g.Context(), "4", 5*time.Hour)
		require.NoError(g, err)
		require.True(g, found)
		g.requireState(sluice.StateScheduled, "2")
		g.requireWaiting("3", "4")
		g.Enqueue(sluice.OutcomeUpdated, later("4", 0)) // Replace
		require.Equal(g, "4", g.ClaimOne(time.Minute).ID)
		g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "0", Group: "a"}) // a worker has 4
		g.requireWaiting("0", "2", "3")
		state, err := g.Q.Cancel(g.Context(), "2")
		require.NoError(g, err)
		require.Equal(g, sluice.StateWaiting, state)
		g.requireWaiting("0", "3")
	})
}

// TestGroup_PoliciesHoldForWhatWaits, too.
func TestGroup_PoliciesHoldForWhatWaits(t *testing.T) {
	hour := func(p sluice.Duplicates, n int) sluice.Task {
		return sluice.Task{ID: "w", Group: "a", Delay: time.Duration(n) * time.Hour, Payload: []byte(fmt.Sprint(n)), Duplicates: p}
	}
	for policy, want := range map[sluice.Duplicates][2]struct {
		outcome sluice.Outcome
		hours   int
		payload string
	}{
		sluice.DuplicatesReplace:  {{sluice.OutcomeUpdated, 1, "1"}, {sluice.OutcomeUpdated, 3, "3"}},
		sluice.DuplicatesKeep:     {{sluice.OutcomeKept, 2, "2"}, {sluice.OutcomeKept, 2, "2"}},
		sluice.DuplicatesEarliest: {{sluice.OutcomeUpdated, 1, "1"}, {sluice.OutcomeKept, 2, "2"}},
		sluice.DuplicatesLatest:   {{sluice.OutcomeKept, 2, "2"}, {sluice.OutcomeUpdated, 3, "3"}},
		sluice.DuplicatesKeepDue:  {{sluice.OutcomeUpdated, 1, "1"}, {sluice.OutcomeUpdated, 2, "3"}},
	} {
		t.Run(policy.String(), func(t *testing.T) {
			eachGrouped(t, func(g grouped) {
				for i, n := range []int{1, 3} {
					require.NoError(g, g.Q.Purge(g.Context()))
					g.Enqueue(sluice.OutcomeAdded, of("a", "first"))
					g.Enqueue(sluice.OutcomeAdded, hour(sluice.DuplicatesReplace, 2))
					g.Enqueue(want[i].outcome, hour(policy, n))
					w, err := g.Q.Get(g.Context(), "w")
					require.NoError(g, err)
					require.Equal(g, sluice.StateWaiting, w.State)
					require.WithinDuration(g, time.Now().Add(time.Duration(want[i].hours)*time.Hour), w.Due, time.Minute)
					require.Equal(g, want[i].payload, string(w.Payload))
				}
			})
		})
	}
}

// TestGroup_OfAnotherOneIsInvalid, and beside a Take.
func TestGroup_OfAnotherOneIsInvalid(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		g.Enqueue(sluice.OutcomeAdded, of("a", "1"))
		g.Enqueue(sluice.OutcomeAdded, of("a", "2"))
		g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "plain"})
		for _, id := range []string{"1", "2", "plain"} {
			_, err := g.Q.Enqueue(g.Context(), of("b", id))
			require.ErrorIs(g, err, sluice.ErrInvalid, id)
			require.ErrorContains(g, err, "Group", id)
		}
		outcomes, err := g.Q.EnqueueBatch(g.Context(), []sluice.Task{of("b", "2"), of("b", "3")})
		require.ErrorIs(g, err, sluice.ErrInvalid)
		require.Equal(g, []sluice.Outcome{0, sluice.OutcomeAdded}, outcomes)
		g.Enqueue(sluice.OutcomeKept, sluice.Task{ID: "1"})
		g.Enqueue(sluice.OutcomeKept, sluice.Task{ID: "2"})
		require.NoError(g, g.Q.SetStock(g.Context(), "phone", 10))
		for _, id := range []string{"1", "2"} {
			_, err := g.Q.Enqueue(g.Context(), phone(id))
			require.ErrorIs(g, err, sluice.ErrInvalid, id)
		}
		g.requireWaiting("2")
		for _, bad := range []sluice.Task{{ID: "x", Group: "a\x00"}, {ID: "x", Group: string(make([]byte, 257))}} {
			_, err := g.Q.Enqueue(g.Context(), bad)
			require.ErrorIs(g, err, sluice.ErrInvalid)
		}
	})
}

// TestGroup_PerGroup: so many are in play, also after it was changed.
func TestGroup_PerGroup(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		require.NoError(g, g.Q.SetLimits(g.Context(), sluice.Limits{PerGroup: 2}))
		l, err := g.Q.Limits(g.Context())
		require.NoError(g, err)
		require.Equal(g, sluice.Limits{PerGroup: 2}, l)
		for i := range 8 {
			g.Enqueue(sluice.OutcomeAdded, of("a", fmt.Sprint(i)))
		}
		es := g.Claim(10, time.Minute)
		require.Len(g, es, 2)
		require.NoError(g, g.Q.SetLimits(g.Context(), sluice.Limits{PerGroup: 4}))
		require.NoError(g, g.Q.Dequeue(g.Context(), es[0]))
		require.Len(g, g.Claim(10, time.Minute), 3)
		require.NoError(g, g.Q.SetLimits(g.Context(), sluice.Limits{}))
		require.NoError(g, g.Q.Dequeue(g.Context(), es[1]))
		require.Empty(g, g.Claim(10, time.Minute), "three are leased")
		g.requireWaiting("5", "6", "7")
	})
}

// TestGroup_ADeadLetterDoesNotHoldItUp, and waits when it is revived.
func TestGroup_ADeadLetterDoesNotHoldItUp(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		g.Enqueue(sluice.OutcomeAdded, of("a", "1"))
		g.Enqueue(sluice.OutcomeAdded, of("a", "2"))
		require.NoError(g, g.Q.Bury(g.Context(), "no", g.ClaimOne(time.Minute)))
		e := g.ClaimOne(time.Minute)
		n, err := g.Q.Revive(g.Context(), "1")
		require.NoError(g, err)
		require.Equal(g, 1, n)
		g.requireWaiting("1")
		require.NoError(g, g.Q.Bury(g.Context(), "no", e))
		require.Equal(g, "1", g.ClaimOne(time.Minute).ID)
		g.Enqueue(sluice.OutcomeAdded, of("b", "2")) // a dead letter is replaced, in whatever group
		require.Equal(g, "b", g.ClaimOne(time.Minute).Group)
	})
}

// TestGroup_WhatAForeignConsumerRemoved holds nothing up: an enqueue mends it, or a worker.
func TestGroup_WhatAForeignConsumerRemoved(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		for _, group := range []string{"a", "b"} {
			g.Enqueue(sluice.OutcomeAdded, of(group, group+"1"))
			g.Enqueue(sluice.OutcomeAdded, of(group, group+"2"))
		}
		require.NoError(g, g.RDB.ZRem(g.Context(), g.Key, "a1", "b1").Err())
		g.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a0", Group: "a", At: time.Now().Add(-time.Hour)})
		g.requireState(sluice.StateDue, "a0")
		var mu sync.Mutex
		var ran []string
		stop := systest.StartWorker(g.T, &sluice.Worker{Queue: g.On(g.RDB), Handler: func(_ context.Context, e sluice.Entry) error {
			mu.Lock()
			defer mu.Unlock()
			ran = append(ran, e.ID)
			return nil
		}})
		g.Eventually(func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(ran) == 3
		})
		require.NoError(g, stop())
		require.ElementsMatch(g, []string{"a0", "a2", "b2"}, ran)
		g.requireWaiting()
	})
}

// TestGroup_WhatAForeignProducerAdded runs beside the others, and once.
func TestGroup_WhatAForeignProducerAdded(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		for _, id := range []string{"1", "2", "3"} {
			g.Enqueue(sluice.OutcomeAdded, of("a", id))
		}
		require.NoError(g, g.RDB.ZAdd(g.Context(), g.Key, redis.Z{Score: 1, Member: "2"}).Err())
		es := g.Claim(10, time.Minute)
		require.Len(g, es, 2)
		for _, e := range es {
			require.NoError(g, g.Q.Dequeue(g.Context(), e))
		}
		e := g.ClaimOne(time.Minute)
		require.Equal(g, "3", e.ID)
		require.NoError(g, g.Q.Dequeue(g.Context(), e))
		require.Empty(g, g.Claim(10, time.Minute))
		g.requireWaiting()
	})
}

// TestGroup_ABatchSeesWhatItHasPromoted: its first task lets one into play that its second one names.
func TestGroup_ABatchSeesWhatItHasPromoted(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		later := func(id string, d time.Duration) sluice.Task { return sluice.Task{ID: id, Group: "a", Delay: d} }
		g.Enqueue(sluice.OutcomeAdded, of("a", "1"))
		g.ClaimOne(time.Minute)
		g.Enqueue(sluice.OutcomeAdded, later("2", time.Hour))
		require.NoError(g, g.Q.SetLimits(g.Context(), sluice.Limits{PerGroup: 2}))
		outcomes, err := g.Q.EnqueueBatch(g.Context(), []sluice.Task{later("3", 3*time.Hour), later("2", 2*time.Hour)})
		require.NoError(g, err)
		require.Equal(g, []sluice.Outcome{sluice.OutcomeAdded, sluice.OutcomeUpdated}, outcomes)
		g.requireState(sluice.StateScheduled, "2")
		g.requireWaiting("3")
	})
}

// TestGroup_AnIdleWorkerIsTold of the next one by each end: it would look after an hour.
func TestGroup_AnIdleWorkerIsTold(t *testing.T) {
	for name, end := range map[string]func(g grouped, e sluice.Entry) error{
		"dequeue": func(g grouped, e sluice.Entry) error { return g.Q.Dequeue(g.Context(), e) },
		"bury":    func(g grouped, e sluice.Entry) error { return g.Q.Bury(g.Context(), "no", e) },
		"cancel":  func(g grouped, e sluice.Entry) error { _, err := g.Q.Cancel(g.Context(), e.ID); return err },
	} {
		t.Run(name, func(t *testing.T) {
			eachGrouped(t, func(g grouped) {
				g.Enqueue(sluice.OutcomeAdded, of("a", "1"))
				g.Enqueue(sluice.OutcomeAdded, of("a", "2"))
				e := g.ClaimOne(time.Hour)
				ran := make(chan string, 2)
				stop := systest.StartWorker(g.T, &sluice.Worker{Queue: g.On(g.RDB, sluice.WithPollInterval(time.Hour)), Handler: func(_ context.Context, e sluice.Entry) error {
					ran <- e.ID
					return nil
				}})
				g.Eventually(func() bool {
					s, err := g.Q.Stats(g.Context())
					return err == nil && s.Waiting == 1
				})
				require.NoError(g, end(g, e))
				select {
				case id := <-ran:
					require.Equal(g, "2", id)
				case <-time.After(10 * time.Second):
					g.Error("the worker was not told")
				}
				require.NoError(g, stop())
			})
		})
	}
}

// TestGroup_AWorkerSeesThatMoreMayBeInPlay: where PerGroup was raised, and no task ends or comes.
func TestGroup_AWorkerSeesThatMoreMayBeInPlay(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		g.Enqueue(sluice.OutcomeAdded, of("a", "1"))
		g.Enqueue(sluice.OutcomeAdded, of("a", "2"))
		g.ClaimOne(time.Hour)
		require.NoError(g, g.Q.SetLimits(g.Context(), sluice.Limits{PerGroup: 2}))
		ran := make(chan string, 1)
		stop := systest.StartWorker(g.T, &sluice.Worker{Queue: g.On(g.RDB), Handler: func(_ context.Context, e sluice.Entry) error {
			ran <- e.ID
			return nil
		}})
		select {
		case id := <-ran:
			require.Equal(g, "2", id)
		case <-time.After(30 * time.Second):
			g.Error("2 waits")
		}
		require.NoError(g, stop())
	})
}

// TestGroup_WorkersKeepTheOrder: many workers, some of whose attempts fail.
func TestGroup_WorkersKeepTheOrder(t *testing.T) {
	eachGrouped(t, func(g grouped) {
		const groups, each = 8, 20
		var ts []sluice.Task
		for i := range each {
			for k := range groups {
				ts = append(ts, of(fmt.Sprint("g", k), fmt.Sprintf("g%d-%02d", k, i)))
			}
		}
		_, err := g.Q.EnqueueBatch(g.Context(), ts)
		require.NoError(g, err)
		var mu sync.Mutex
		running, done := map[string]int{}, map[string][]string{}
		total := 0
		handler := func(_ context.Context, e sluice.Entry) error {
			mu.Lock()
			running[e.Group]++
			if running[e.Group] > 1 {
				g.Errorf("two of %s at once", e.Group)
			}
			mu.Unlock()
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				running[e.Group]--
			}()
			if len(e.ID)%2 == 0 && e.Attempt == 1 && e.ID[len(e.ID)-1] == '7' {
				return fmt.Errorf("no")
			}
			mu.Lock()
			defer mu.Unlock()
			done[e.Group] = append(done[e.Group], e.ID)
			total++
			return nil
		}
		for range 3 {
			systest.StartWorker(g.T, &sluice.Worker{Queue: g.On(g.RDB), Handler: handler, Concurrency: 8, Backoff: func(int, error) time.Duration { return 0 }})
		}
		g.Eventually(func() bool {
			mu.Lock()
			defer mu.Unlock()
			return total == groups*each
		})
		for k := range groups {
			for i, id := range done[fmt.Sprint("g", k)] {
				require.Equal(g, fmt.Sprintf("g%d-%02d", k, i), id)
			}
		}
	})
}
