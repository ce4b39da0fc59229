package queues

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// A storied is a queue with a task "a" whose first attempt has failed with "no route".
type storied struct{ systest.QueueTest }

// errs returns how many last errors the server has.
func (b storied) errs() int64 { return b.RDB.HLen(b.Context(), "{"+b.Key+"}:errors").Val() }

// failed has the first attempt fail.
func (b storied) failed() {
	b.Helper()
	b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
	require.NoError(b, b.Q.Retry(b.Context(), 0, "no route", b.ClaimOne(time.Minute)))
}

// requireError has Get, and the List of its state, show the last error.
func (b storied) requireError(s sluice.State, reason string) {
	b.Helper()
	t := b.Get("a")
	require.Equal(b, s, t.State)
	require.Equal(b, reason, t.Reason)
	if reason == "" {
		require.Zero(b, t.FailedAt)
	} else {
		require.WithinDuration(b, time.Now(), t.FailedAt, time.Minute)
	}
	listed, err := b.Q.List(b.Context(), s, sluice.TaskInfo{}, 10)
	require.NoError(b, err)
	require.Equal(b, []sluice.TaskInfo{t}, listed)
}

// TestTaskInfo_HasNoErrorOfAnEarlierTask with the same ID: an older build has left it.
func TestTaskInfo_HasNoErrorOfAnEarlierTask(t *testing.T) {
	systest.EachQueue(t, func(q systest.QueueTest) {
		b := storied{q}
		require.NoError(b, b.RDB.HSet(b.Context(), "{"+b.Key+"}:errors", "a", "1700000000.5 of an earlier one").Err())
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		b.requireError(sluice.StateDue, "")
		e := b.ClaimOne(time.Minute)
		b.requireError(sluice.StateLeased, "")
		require.NoError(b, b.Q.Retry(b.Context(), 0, "its own", e))
		b.requireError(sluice.StateDue, "its own")
		b.ClaimOne(time.Minute)
		b.requireError(sluice.StateLeased, "its own")
	})
}

// TestTaskInfo_HasTheLastError: from Retry on, in each state, until the next one.
func TestTaskInfo_HasTheLastError(t *testing.T) {
	systest.EachQueue(t, func(q systest.QueueTest) {
		b, ctx := storied{q}, q.Context()
		b.failed()
		b.requireError(sluice.StateDue, "no route")
		e := b.ClaimOne(time.Minute)
		b.requireError(sluice.StateLeased, "no route")
		require.NoError(b, b.Q.Extend(ctx, e, time.Hour))
		require.NoError(b, b.Q.Release(ctx, e))
		b.requireError(sluice.StateDue, "no route")
		require.NoError(b, b.Q.Retry(ctx, time.Hour, "no\nroute: \x00 \xff "+strings.Repeat("é", 300), b.ClaimOne(time.Minute)))
		b.requireError(sluice.StateScheduled, "no\nroute: \x00 \ufffd "+strings.Repeat("é", 248))
		require.Len(b, b.Get("a").Reason, 512)
		found, err := b.Q.Reschedule(ctx, "a", 0)
		require.NoError(b, err)
		require.True(b, found)
		require.NoError(b, b.Q.Retry(ctx, 0, "", b.ClaimOne(time.Minute)))
		b.requireError(sluice.StateDue, "no\nroute: \x00 \ufffd "+strings.Repeat("é", 248))
		b.Bury(b.ClaimOne(time.Minute), "hopeless")
		require.Equal(b, "hopeless", b.Dead(1)[0].Reason)
		require.Zero(b, b.errs())
		b.Revive(1, "a")
		b.requireError(sluice.StateDue, "")
	})
}

// TestQueue_ALastErrorGoesWithItsTask: where a task ends, or its attempts begin anew, nothing of it
// is left.
func TestQueue_ALastErrorGoesWithItsTask(t *testing.T) {
	later := sluice.Task{ID: "a", Payload: []byte("next"), Delay: time.Hour}
	dequeue := func(b storied, es ...sluice.Entry) { require.NoError(b, b.Q.Dequeue(b.Context(), es...)) }
	deferred := func(b storied) sluice.Entry {
		e := b.ClaimOne(time.Minute)
		b.Enqueue(sluice.OutcomeDeferred, later)
		return e
	}
	ways := map[string]func(b storied){
		"dequeue": func(b storied) { dequeue(b, b.ClaimOne(time.Minute)) },
		"dequeue after an extension": func(b storied) {
			e := b.ClaimOne(time.Minute)
			require.NoError(b, b.Q.Extend(b.Context(), e, time.Hour))
			dequeue(b, e)
		},
		"dequeue what was peeked at": func(b storied) {
			es, err := b.Q.Peek(b.Context(), 1)
			require.NoError(b, err)
			dequeue(b, es...)
		},
		"dequeue what is scheduled": func(b storied) {
			found, err := b.Q.Reschedule(b.Context(), "a", time.Hour)
			require.NoError(b, err)
			require.True(b, found)
			dequeue(b, b.Get("a").Entry)
		},
		"release what was peeked at": func(b storied) {
			es, err := b.Q.Peek(b.Context(), 1)
			require.NoError(b, err)
			require.NoError(b, b.Q.Release(b.Context(), es...))
			dequeue(b, b.ClaimOne(time.Minute))
		},
		"a version took over, and is tried again": func(b storied) {
			e := b.ClaimOne(time.Minute)
			b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "a"})
			b.EndLeaseUnseen(e)
			es, err := b.Q.Peek(b.Context(), 1)
			require.NoError(b, err)
			require.NoError(b, b.Q.Retry(b.Context(), 0, "again", es[0]))
		},
		"a version took over, and is finished": func(b storied) {
			e := b.ClaimOne(time.Minute)
			b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "a"})
			b.EndLeaseUnseen(e)
			es, err := b.Q.Peek(b.Context(), 1)
			require.NoError(b, err)
			dequeue(b, es...)
		},
		"dequeue among others": func(b storied) {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "b"})
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "c"})
			dequeue(b, b.Claim(3, time.Minute)...)
		},
		"dequeue behind which a version waits": func(b storied) { dequeue(b, deferred(b)) },
		"retry behind which a version waits":   func(b storied) { require.NoError(b, b.Q.Retry(b.Context(), 0, "again", deferred(b))) },
		"bury behind which a version waits":    func(b storied) { b.Bury(deferred(b), "why") },
		"bury":                                 func(b storied) { b.Bury(b.ClaimOne(time.Minute), "why") },
		"a version took over, and is claimed": func(b storied) {
			e := b.ClaimOne(time.Minute)
			b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "a"})
			b.EndLeaseUnseen(e)
			require.Equal(b, 1, b.ClaimOne(time.Minute).Attempt)
		},
		"a version took over, and is due later": func(b storied) {
			b.EndLeaseUnseen(deferred(b))
			require.Empty(b, b.Claim(1, time.Minute))
		},
		"a version took over, and is rescheduled": func(b storied) {
			b.EndLeaseUnseen(deferred(b))
			_, err := b.Q.Reschedule(b.Context(), "a", time.Minute)
			require.NoError(b, err)
		},
		"a version took over, and is popped": func(b storied) {
			e := b.ClaimOne(time.Minute)
			b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "a"})
			b.EndLeaseUnseen(e)
			es, err := b.Q.Pop(b.Context(), 1)
			require.NoError(b, err)
			require.Len(b, es, 1)
		},
		"attempts used up": func(b storied) {
			es, err := b.On(b.RDB, sluice.WithMaxAttempts(1)).Claim(b.Context(), 1, time.Minute)
			require.NoError(b, err)
			require.Empty(b, es)
			require.Len(b, b.Dead(1), 1)
		},
		"pop": func(b storied) {
			es, err := b.Q.Pop(b.Context(), 1)
			require.NoError(b, err)
			require.Len(b, es, 1)
		},
		"enqueue": func(b storied) { b.Enqueue(sluice.OutcomeUpdated, later) },
		"enqueue in a batch": func(b storied) {
			_, err := b.Q.EnqueueBatch(b.Context(), []sluice.Task{{ID: "b"}, later})
			require.NoError(b, err)
		},
		"cancel": func(b storied) { _, err := b.Q.Cancel(b.Context(), "a"); require.NoError(b, err) },
		"cancel while leased": func(b storied) {
			b.ClaimOne(time.Minute)
			_, err := b.Q.Cancel(b.Context(), "a")
			require.NoError(b, err)
		},
		"purge": func(b storied) { require.NoError(b, b.Q.Purge(b.Context())) },
		"next occurrence": func(b storied) {
			next := sluice.Task{ID: "a", At: time.Now().Add(time.Hour), Payload: []byte("next")}
			require.NoError(b, b.PutNext(b.Context(), b.ClaimOne(time.Minute), next))
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			systest.EachQueue(t, func(q systest.QueueTest) {
				b := storied{q}
				b.failed()
				require.EqualValues(b, 1, b.errs())
				way(b)
				require.Zero(b, b.errs())
			})
		})
	}
}

// TestQueue_ATaskThatWasNeverClaimedHasNoError: it would be left behind, since what ends a first
// attempt does not look for one.
func TestQueue_ATaskThatWasNeverClaimedHasNoError(t *testing.T) {
	systest.EachQueue(t, func(q systest.QueueTest) {
		b := storied{q}
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		es, err := b.Q.Peek(b.Context(), 1)
		require.NoError(b, err)
		require.NoError(b, b.Q.Retry(b.Context(), 0, "no route", es[0]))
		require.Zero(b, b.errs())
	})
}

// TestQueue_WhatIsToldOfATaskIsNotNeeded: where the keys of last errors and of counts are another
// program's, tasks go their way.
func TestQueue_WhatIsToldOfATaskIsNotNeeded(t *testing.T) {
	systest.EachQueue(t, func(q systest.QueueTest) {
		b := storied{q}
		for _, ending := range []string{":errors", ":counts"} {
			require.NoError(b, b.RDB.Set(b.Context(), "{"+b.Key+"}"+ending, "another's", 0).Err())
		}
		b.failed()
		b.requireError(sluice.StateDue, "")
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "b"})
		es := b.Claim(2, time.Minute)
		b.Bury(es[0], "why")
		require.NoError(b, b.Q.Dequeue(b.Context(), es[1]))
		b.Revive(1, es[0].ID)
		es, err := b.Q.Pop(b.Context(), 1)
		require.NoError(b, err)
		require.Len(b, es, 1)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "c"})
		_, err = b.Q.Cancel(b.Context(), "c")
		require.NoError(b, err)
		require.NoError(b, b.RDB.Del(b.Context(), "{"+b.Key+"}:errors").Err())
		b.RequireClean()
	})
}

// TestTaskInfo_SaysSinceWhenItIsLeased: since the claim, whatever was extended since.
func TestTaskInfo_SaysSinceWhenItIsLeased(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		for _, lease := range []time.Duration{1500 * time.Millisecond, 90 * time.Second, 30 * 24 * time.Hour} {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
			before := b.Now()
			e := b.ClaimOne(lease)
			leased := b.Get("a")
			since := float64(leased.LeasedSince.UnixMicro()) / 1e6
			require.GreaterOrEqual(b, since, before-1e-6)
			require.LessOrEqual(b, since, b.Now()+1e-6)
			require.Empty(b, leased.Worker)
			require.NoError(b, b.Q.Extend(b.Context(), e, time.Hour))
			b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "a", Delay: time.Hour})
			require.NoError(b, b.Q.Extend(b.Context(), e, 2*time.Hour))
			require.Equal(b, leased.LeasedSince, b.Get("a").LeasedSince)
			listed, err := b.Q.List(b.Context(), sluice.StateLeased, sluice.TaskInfo{}, 10)
			require.NoError(b, err)
			require.Equal(b, leased.LeasedSince, listed[0].LeasedSince)
			require.NoError(b, b.Q.Dequeue(b.Context(), e))
			require.Zero(b, b.Get("a").LeasedSince)
			_, err = b.Q.Cancel(b.Context(), "a")
			require.NoError(b, err)
		}
	})
}

// TestTaskInfo_SaysWhoHadItLast: of a task whose lease has ended, until it is claimed again, or is
// another one of that ID. What an earlier task of that ID has left is not its last error.
func TestTaskInfo_SaysWhoHadItLast(t *testing.T) {
	systest.EachQueue(t, func(q systest.QueueTest) {
		b := noted{q}
		shown := func() sluice.TaskInfo {
			b.Helper()
			listed, err := b.Q.List(b.Context(), b.Get("a").State, sluice.TaskInfo{}, 10)
			require.NoError(b, err)
			require.Equal(b, []sluice.TaskInfo{b.Get("a")}, listed)
			return listed[0]
		}
		requireNone := func(s sluice.State) {
			b.Helper()
			got := shown()
			require.Equal(b, s, got.State)
			require.Zero(b, got.LeasedSince)
			require.Empty(b, got.Worker)
		}
		lapse := func() sluice.TaskInfo {
			b.Helper()
			b.ClaimOne(4 * time.Second)
			b.write("4/worker7")
			leased := shown()
			require.Equal(b, sluice.StateLeased, leased.State)
			require.Equal(b, "worker7", leased.Worker)
			b.Eventually(func() bool { return b.Get("a").State == sluice.StateDue })
			due := shown()
			require.Equal(b, "worker7", due.Worker)
			require.Equal(b, leased.LeasedSince, due.LeasedSince)
			require.WithinDuration(b, due.Due, due.LeasedSince.Add(4*time.Second), 2*time.Microsecond)
			return due
		}
		b.due()
		require.NoError(b, b.RDB.HSet(b.Context(), "{"+b.Key+"}:errors", "a", "1 an earlier one's").Err())
		requireNone(sluice.StateDue)
		require.Empty(b, lapse().Reason)
		e := b.ClaimOne(time.Minute)
		require.Empty(b, b.Get("a").Worker, "a Claim has it")
		require.NoError(b, b.Q.Retry(b.Context(), 0, "why", e))
		requireNone(sluice.StateDue)
		due := lapse()
		require.Equal(b, "why", due.Reason)
		require.NoError(b, b.Q.Dequeue(b.Context(), due.Entry))
		b.due()
		lapse()
		b.Enqueue(sluice.OutcomeUpdated, sluice.Task{ID: "a"})
		requireNone(sluice.StateDue)
	})
}

// TestTaskInfo_OfALaterVersionsClaim: what it says of its claimant is not taken for a Worker, and
// its lease is known all the same.
func TestTaskInfo_OfALaterVersionsClaim(t *testing.T) {
	systest.EachQueue(t, func(q systest.QueueTest) {
		b := noted{q}
		b.claimed()
		for _, claimant := range []string{laterNote, "30/a,b", "30", "/a", "-1/a", "1.2.3/a", "30/a/b"} {
			b.write(claimant)
			leased := b.Get("a")
			require.Equal(b, sluice.StateLeased, leased.State, claimant)
			require.Empty(b, leased.Worker, claimant)
			require.Zero(b, leased.LeasedSince, claimant)
		}
	})
}

// TestWorker_KeepsTheLastError: the error of a handler is the last one of its task.
func TestWorker_KeepsTheLastError(t *testing.T) {
	systest.EachQueue(t, func(q systest.QueueTest) {
		b := storied{q}
		attempts := make(chan int, 100)
		stop := working(q, &sluice.Worker{
			Queue: b.Q, Backoff: func(int, error) time.Duration { return time.Millisecond },
			Handler: func(_ context.Context, e sluice.Entry) error {
				attempts <- e.Attempt
				if e.Attempt < 3 {
					return errors.New("no route")
				}
				return sluice.Again(time.Hour)
			},
		})
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		b.Eventually(func() bool { return b.Stats().Scheduled == 1 && len(attempts) == 3 })
		b.requireError(sluice.StateScheduled, "no route")
		stop()
		require.Equal(b, 2, b.Get("a").Attempt)
	})
}
