package queues

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// A remembering is a queue with a retention of an hour.
type remembering struct{ systest.QueueTest }

func eachRemembering(t *testing.T, test func(b remembering), opts ...sluice.QueueOption) {
	t.Helper()
	systest.EachQueue(t, func(q systest.QueueTest) { test(remembering{q}) }, append([]sluice.QueueOption{sluice.WithRetention(time.Hour)}, opts...)...)
}

// finish has a task enqueued, claimed and finished.
func (b remembering) finish(id string) {
	b.Helper()
	b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id, Kind: "k", Payload: []byte("p")})
	require.NoError(b, b.Q.Dequeue(b.Context(), b.ClaimOne(time.Minute)))
}

// age has what is remembered of a task be so old.
func (b remembering) age(id string, old time.Duration) {
	b.Helper()
	require.NoError(b, b.RDB.ZAddXX(b.Context(), b.doneKey(), redis.Z{Score: b.Now() - old.Seconds(), Member: id}).Err())
}

func (b remembering) doneKey() string { return "{" + b.Key + "}:done" }

// kept is how often a task was claimed that the server still remembers, 0 if it does not, or once.
func (b remembering) kept(id string) float64 {
	b.Helper()
	var attempt float64
	_, _ = fmt.Sscan(b.RDB.HGet(b.Context(), "{"+b.Key+"}:results", id).Val(), &attempt)
	return attempt
}

// requireForgotten says that nothing of a task is left.
func (b remembering) requireForgotten(id string) {
	b.Helper()
	_, err := b.Q.Get(b.Context(), id)
	require.ErrorIs(b, err, sluice.ErrNotFound)
	require.ErrorIs(b, b.RDB.ZScore(b.Context(), b.doneKey(), id).Err(), redis.Nil)
	require.False(b, b.RDB.HExists(b.Context(), "{"+b.Key+"}:results", id).Val())
}

// retained is how many tasks Stats says are remembered.
func (b remembering) retained() int64 {
	b.Helper()
	s, err := b.Q.Stats(b.Context())
	require.NoError(b, err)
	return s.Done
}

// work has a worker handle tasks until so many are done.
func (b remembering) work(n int64, handler sluice.Handler) {
	b.Helper()
	w := &sluice.Worker{Queue: b.Q, Handler: handler, Backoff: systest.After(time.Millisecond)}
	stop := systest.StartWorker(b.T, w)
	b.Eventually(func() bool { return w.Stats().Done == n })
	require.NoError(b, stop())
}

// TestRetention_ShowsWhatIsDone: Get, List, All and Stats do, of tasks with any attempt, on a path
// of their own or in groups.
func TestRetention_ShowsWhatIsDone(t *testing.T) {
	eachRemembering(t, func(b remembering) {
		before := b.Now()
		b.finish("a")
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "b"})
		require.NoError(b, b.Q.Retry(b.Context(), 0, "why", b.ClaimOne(time.Minute)))
		e := b.ClaimOne(time.Minute)
		require.NoError(b, b.Q.Extend(b.Context(), e, time.Hour)) // so that it is not plain
		require.NoError(b, b.Q.Dequeue(b.Context(), e))
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "c"})
		peeked, err := b.Q.Peek(b.Context(), 1)
		require.NoError(b, err)
		require.NoError(b, b.Q.Dequeue(b.Context(), peeked...))

		listed, err := b.Q.List(b.Context(), sluice.StateDone, sluice.TaskInfo{}, 10)
		require.NoError(b, err)
		require.Equal(b, []string{"a", "b", "c"}, systest.IDs(listed))
		for i, attempt := range []int{1, 2, 0} {
			shown := listed[i]
			require.GreaterOrEqual(b, shown.Score, before-1e-6)
			require.LessOrEqual(b, shown.Score, b.Now())
			require.WithinDuration(b, time.UnixMicro(int64(shown.Score*1e6)), shown.DoneAt, time.Millisecond)
			require.Equal(b, sluice.TaskInfo{Entry: sluice.Entry{ID: shown.ID, Attempt: attempt, Score: shown.Score}, State: sluice.StateDone, DoneAt: shown.DoneAt}, shown)
			got := b.Get(shown.ID)
			got.Score = shown.Score // Get does not say its place in the list
			require.Equal(b, shown, got)
		}
		second, err := b.Q.List(b.Context(), sluice.StateDone, listed[0], 1)
		require.NoError(b, err)
		require.Equal(b, []string{"b"}, systest.IDs(second))
		require.EqualValues(b, 3, b.retained())
		require.Zero(b, systest.Standing(b.Stats()), "none of them is in the queue")
	})
}

// TestRetention_RemembersWhatEndsByItself, and nothing of what another takes the place of, or is
// taken away.
func TestRetention_RemembersWhatEndsByItself(t *testing.T) {
	eachRemembering(t, func(b remembering) {
		ctx := b.Context()
		cancel := func(want sluice.State) {
			state, err := b.Q.Cancel(ctx, "a")
			require.NoError(b, err)
			require.Equal(b, want, state)
		}
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		_, err := b.Q.Pop(ctx, 1)
		require.NoError(b, err)
		b.requireForgotten("a")

		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		e := b.ClaimOne(time.Minute)
		b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "a"})
		require.NoError(b, b.Q.Dequeue(ctx, e))
		cancel(sluice.StateDue) // the version that waited
		b.requireForgotten("a")

		b.finish("a")
		cancel(sluice.StateDone)
		b.requireForgotten("a")
		cancel(sluice.StateAbsent)

		b.finish("a")
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Delay: time.Hour}) // a remembered ID is not in the way,
		require.Equal(b, sluice.StateScheduled, b.Get("a").State)
		listed, err := b.Q.List(ctx, sluice.StateDone, sluice.TaskInfo{}, 10)
		require.NoError(b, err)
		require.Empty(b, listed)
		cancel(sluice.StateScheduled)
		b.requireForgotten("a")

		b.finish("a")
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"}) // nor is it in that of a dead letter
		b.Bury(b.ClaimOne(time.Minute), "why")
		require.Equal(b, "why", b.Get("a").Reason)
		dropped, err := b.Q.Drop(ctx, "a")
		require.NoError(b, err)
		require.Equal(b, 1, dropped)
		require.Equal(b, sluice.StateDone, b.Get("a").State, "the one before is remembered")
		found, err := b.Q.Reschedule(ctx, "a", 0)
		require.NoError(b, err)
		require.False(b, found)
		b.Revive(0, "a")
		require.NoError(b, b.Q.Purge(ctx))
		b.requireForgotten("a")
		require.Zero(b, b.retained())
	})
}

// TestRetention_BesideAStateFieldThatIsLeft: a foreign consumer has removed a leased task from the
// queue alone. An earlier one of that ID is done, for Get, List and DuplicatesOnce alike.
func TestRetention_BesideAStateFieldThatIsLeft(t *testing.T) {
	eachRemembering(t, func(b remembering) {
		b.finish("a")
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		b.ClaimOne(time.Minute)
		require.NoError(b, b.RDB.ZRem(b.Context(), b.Key, "a").Err())
		require.Equal(b, sluice.StateDone, b.Get("a").State)
		listed, err := b.Q.List(b.Context(), sluice.StateDone, sluice.TaskInfo{}, 10)
		require.NoError(b, err)
		require.Equal(b, []string{"a"}, systest.IDs(listed))
		once := b.On(b.RDB, sluice.WithRetention(time.Hour), sluice.WithDuplicates(sluice.DuplicatesOnce))
		outcome, err := once.Enqueue(b.Context(), sluice.Task{ID: "a"})
		require.NoError(b, err)
		require.Equal(b, sluice.OutcomeDone, outcome)
	})
}

// TestRetention_UnusedTouchesNothing: neither keys nor results, and a handler may record one all
// the same.
func TestRetention_UnusedTouchesNothing(t *testing.T) {
	systest.EachQueue(t, func(q systest.QueueTest) {
		b := remembering{q}
		b.finish("a")
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "b"})
		b.work(1, func(ctx context.Context, _ sluice.Entry) error { return sluice.RecordResult(ctx, []byte("r")) })
		b.requireForgotten("a")
		b.requireForgotten("b")
	})
}

// TestRecordResult: the last one of the attempt that has finished the task is shown, as payloads
// are.
func TestRecordResult(t *testing.T) {
	eachRemembering(t, func(b remembering) {
		large := bytes.Repeat([]byte("x\x00\xffSLU\x01\n"), 8<<10)
		for _, id := range []string{"a", "b", "c", "d"} {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id, Payload: []byte("p")})
		}
		var escaped context.Context
		b.work(4, func(ctx context.Context, e sluice.Entry) error {
			record := func(data []byte) { require.NoError(b, sluice.RecordResult(ctx, data)) }
			switch {
			case e.ID == "a":
				require.ErrorIs(b, sluice.RecordResult(ctx, make([]byte, 64<<10+1)), sluice.ErrInvalid)
				record([]byte("first"))
				record([]byte("last"))
				escaped = ctx
			case e.ID == "b":
				data := bytes.Clone(large)
				record(data)
				clear(data)
			case e.ID == "c" && e.Attempt == 1:
				record([]byte("of an attempt that fails"))
				return errors.New("why")
			}
			return nil
		})
		require.Len(b, large, 64<<10)
		shown := func(id string, opts ...sluice.ReadOption) (string, int, int) {
			got, err := b.Q.Get(b.Context(), id, opts...)
			require.NoError(b, err)
			require.Equal(b, sluice.StateDone, got.State)
			require.Nil(b, got.Payload)
			require.Nil(b, got.Header)
			return string(got.Result), got.Attempt, got.Omitted
		}
		want := func(result string, attempt, omitted int) []any { return []any{result, attempt, omitted} }
		is := func(result string, attempt, omitted int) []any { return []any{result, attempt, omitted} }
		require.Equal(b, want("last", 1, 0), is(shown("a")))
		require.Equal(b, want(string(large), 1, 0), is(shown("b")))
		require.Equal(b, want("", 2, 0), is(shown("c")))
		require.Equal(b, want("", 1, 0), is(shown("d")))
		require.Equal(b, want("", 1, 0), is(shown("b", sluice.WithoutPayloads())))
		require.Equal(b, want("", 1, 64<<10), is(shown("b", sluice.WithPayloadsUpTo(1000))))
		require.Equal(b, want("last", 1, 0), is(shown("a", sluice.WithPayloadsUpTo(4))))
		seen := map[string]sluice.TaskInfo{}
		for task, err := range b.Q.All(b.Context(), sluice.StateDone, sluice.WithPayloadsUpTo(1000)) {
			require.NoError(b, err)
			seen[task.ID] = task
		}
		require.Len(b, seen, 4)
		require.Equal(b, 64<<10, seen["b"].Omitted)
		require.Equal(b, "last", string(seen["a"].Result))
		require.Equal(b, 2, seen["c"].Attempt)

		b.finish("a") // again, without a result
		require.Equal(b, want("", 1, 0), is(shown("a")))
		for _, ctx := range []context.Context{b.Context(), escaped} {
			err := sluice.RecordResult(ctx, nil)
			require.ErrorIs(b, err, sluice.ErrInvalid)
			require.ErrorContains(b, err, "ctx is not that of a running handler")
		}
	})
}

// TestRecordResult_OfATaskThatIsGone: a handler that has lost its lease, or whose task was
// cancelled, is told so. Once it has returned, its ctx is a mistake of the program.
func TestRecordResult_OfATaskThatIsGone(t *testing.T) {
	eachRemembering(t, func(b remembering) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "canceled"})
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "stuck"})
		results := map[string]chan error{"canceled": make(chan error, 1), "stuck": make(chan error, 1)}
		var escaped atomic.Value
		handler := func(ctx context.Context, e sluice.Entry) error {
			defer escaped.Store(ctx)
			if e.ID == "canceled" {
				_, err := b.Q.Cancel(ctx, e.ID)
				assert.NoError(b, err)
			}
			for sluice.LeaseValid(ctx) {
				time.Sleep(time.Millisecond)
			}
			select {
			case results[e.ID] <- sluice.RecordResult(ctx, []byte("late")):
			default: // it was handed out again
			}
			return nil
		}
		w := &sluice.Worker{Queue: b.Q, Handler: handler, Timeout: 500 * time.Millisecond, Grace: time.Millisecond}
		stop := systest.StartWorker(b.T, w)
		for id, result := range results {
			err := <-result
			require.ErrorIs(b, err, sluice.ErrStale, id)
			require.NotErrorIs(b, err, sluice.ErrInvalid, id)
		}
		require.NoError(b, stop())
		require.ErrorIs(b, sluice.RecordResult(escaped.Load().(context.Context), nil), sluice.ErrInvalid)
	})
}

// TestRecordResult_ManyLargeOnes: each script carries a megabyte at most.
func TestRecordResult_ManyLargeOnes(t *testing.T) {
	eachRemembering(t, func(b remembering) {
		const n = 60
		var tasks []sluice.Task
		for i := range n {
			tasks = append(tasks, sluice.Task{ID: fmt.Sprint(i)})
		}
		_, err := b.Q.EnqueueBatch(b.Context(), tasks)
		require.NoError(b, err)
		w := &sluice.Worker{Queue: b.Q, Concurrency: n, Handler: func(ctx context.Context, e sluice.Entry) error {
			return sluice.RecordResult(ctx, bytes.Repeat([]byte(e.ID+"."), 64<<10/(len(e.ID)+1)))
		}}
		stop := systest.StartWorker(b.T, w)
		b.Eventually(func() bool { return w.Stats().Done == n })
		require.NoError(b, stop())
		done := 0
		for task, err := range b.Q.All(b.Context(), sluice.StateDone) {
			require.NoError(b, err)
			require.Equal(b, strings.Repeat(task.ID+".", 64<<10/(len(task.ID)+1)), string(task.Result))
			done++
		}
		require.Equal(b, n, done)
	})
}

// TestRetention_IsOver: what is over is forgotten by what finishes tasks, and once a Worker says
// that it lives.
func TestRetention_IsOver(t *testing.T) {
	eachRemembering(t, func(b remembering) {
		ctx := b.Context()
		for _, forget := range []func(){
			func() { b.finish("other") },
			func() {
				b.Stats()
				require.Empty(b, b.Claim(1, time.Minute))
				require.Equal(b, 2.0, b.kept("old"), "nothing was finished")
				defer working(b.QueueTest, &sluice.Worker{Queue: b.Q, Handler: nothing})()
				b.Eventually(func() bool { return len(workersOf(b.QueueTest)) == 1 })
			},
		} {
			b.finish("young")
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "old"})
			require.NoError(b, b.Q.Retry(ctx, 0, "", b.ClaimOne(time.Minute)))
			require.NoError(b, b.Q.Dequeue(ctx, b.ClaimOne(time.Minute)))
			b.age("old", time.Hour+time.Second)
			b.age("young", time.Hour-time.Minute)
			require.Equal(b, 2.0, b.kept("old"))
			forget()
			b.requireForgotten("old")
			require.Equal(b, sluice.StateDone, b.Get("young").State)
		}
	})
}

// TestRetention_WhatIsOverIsNotShown, whether it was forgotten or not: an enqueue with
// DuplicatesOnce takes the ID for a new one, too. A Queue that does not say how long tasks are
// remembered goes by the last Worker.
func TestRetention_WhatIsOverIsNotShown(t *testing.T) {
	eachRemembering(t, func(b remembering) {
		asks, err := sluice.NewQueue(b.RDB, b.Q.Name())
		require.NoError(b, err)
		require.NoError(b, b.RDB.HSet(b.Context(), "{"+b.Key+"}:counts", "retention", "3600").Err(), "as a Worker does")
		ids := []string{"old", "older", "young"}
		for _, id := range ids {
			b.finish(id)
		}
		for i, id := range ids {
			b.age(id, time.Hour+time.Duration(30-20*i)*time.Second)
		}
		for _, q := range []*sluice.Queue{b.Q, asks} {
			for _, id := range []string{"old", "older"} {
				_, err := q.Get(b.Context(), id)
				require.ErrorIs(b, err, sluice.ErrNotFound)
			}
			young, err := q.Get(b.Context(), "young")
			require.NoError(b, err)
			require.Equal(b, sluice.StateDone, young.State)
			listed, err := q.List(b.Context(), sluice.StateDone, sluice.TaskInfo{}, 10)
			require.NoError(b, err)
			require.Equal(b, []sluice.TaskInfo{young}, listed)
			stats, err := q.Stats(b.Context())
			require.NoError(b, err)
			require.Equal(b, int64(1), stats.Done)
		}
		require.NoError(b, b.RDB.ZScore(b.Context(), b.doneKey(), "old").Err(), "it is still there")
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "old"})
		b.Enqueue(sluice.OutcomeDone, sluice.Task{ID: "young"})
	}, sluice.WithDuplicates(sluice.DuplicatesOnce))
}

// TestRetention_OfMany: one script forgets a thousand, and a worker all, where nothing is finished.
func TestRetention_OfMany(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		b := remembering{systest.NewQueueTest(t, rdb, "q", sluice.WithRetention(time.Minute))}
		const n = 3500
		for i := range n {
			require.NoError(t, rdb.ZAdd(t.Context(), b.doneKey(), redis.Z{Score: b.Now(), Member: fmt.Sprint(i)}).Err())
		}
		time.Sleep(61 * time.Second)
		b.finish("a")
		require.EqualValues(t, n-1000+1, rdb.ZCard(t.Context(), b.doneKey()).Val())
		stop := systest.StartWorker(t, &sluice.Worker{Queue: b.Q, Handler: func(context.Context, sluice.Entry) error { return nil }})
		time.Sleep(2 * time.Second)
		require.EqualValues(t, 1, rdb.ZCard(t.Context(), b.doneKey()).Val())
		time.Sleep(2 * time.Minute)
		b.requireForgotten("a")
		require.NoError(t, stop())
		time.Sleep(time.Minute)
	})
}

// TestRetention_OnAFullServer: tasks are finished and remembered, without results, and the log
// tells of that.
func TestRetention_OnAFullServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := remembering{systest.NewQueueTest(t, s.Client(t), "q", sluice.WithRetention(time.Hour))}
	for _, id := range []string{"a", "b"} {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id, Payload: []byte("p")})
	}
	var log systest.Buffer
	w := &sluice.Worker{Queue: b.Q, Concurrency: 1, Logger: systest.LogTo(&log), Backoff: systest.After(0), Handler: func(ctx context.Context, e sluice.Entry) error {
		require.NoError(t, b.RDB.ConfigSet(ctx, "maxmemory", "1").Err())
		if e.ID == "a" && e.Attempt == 1 {
			return errors.New("why")
		}
		return sluice.RecordResult(ctx, []byte("secret "+e.ID))
	}}
	stop := systest.StartWorker(t, w)
	b.Eventually(func() bool { return w.Stats().Done == 2 })
	require.NoError(t, stop())
	for id, attempt := range map[string]int{"a": 2, "b": 1} {
		done := b.Get(id)
		require.Equal(t, sluice.StateDone, done.State)
		require.Equal(t, attempt, done.Attempt)
		require.Empty(t, done.Result)
	}
	require.Equal(t, 2, log.Count("the server refused the task's result"), log.String())
	require.NotContains(t, log.String(), "secret")
}

// TestRetention_IsNotNeeded: whatever the keys of what is done are, or the user may do with them,
// tasks are finished.
func TestRetention_IsNotNeeded(t *testing.T) {
	eachRemembering(t, func(b remembering) {
		for _, ending := range []string{":done", ":results"} {
			key := "{" + b.Key + "}" + ending
			require.NoError(b, b.RDB.Set(b.Context(), key, "another's", 0).Err())
			b.finish("a")
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "b"})
			b.work(1, func(ctx context.Context, _ sluice.Entry) error { return sluice.RecordResult(ctx, []byte("r")) })
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "c", Delay: time.Hour})
			state, err := b.Q.Cancel(b.Context(), "c")
			require.NoError(b, err)
			require.Equal(b, sluice.StateScheduled, state)
			b.Stats()
			require.Equal(b, "another's", b.RDB.Get(b.Context(), key).Val())
			require.NoError(b, b.RDB.Del(b.Context(), key).Err())
		}
		require.Zero(b, systest.Standing(b.Stats()))
	})
}

// TestRetention_OptionsAreChecked: see WithRetention and DuplicatesOnce.
func TestRetention_OptionsAreChecked(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	for _, opts := range [][]sluice.QueueOption{
		{sluice.WithRetention(time.Microsecond)},
		{sluice.WithRetention(101 * 365 * 24 * time.Hour)},
		{sluice.WithDuplicates(sluice.DuplicatesOnce)},
		{sluice.WithDuplicates(sluice.DuplicatesOnce + 1)},
	} {
		_, err := sluice.NewQueue(rdb, "q", opts...)
		require.ErrorIs(t, err, sluice.ErrInvalid)
	}
	require.Equal(t, "once", sluice.DuplicatesOnce.String())
	require.Equal(t, "keepdue", sluice.DuplicatesKeepDue.String())
	require.Equal(t, "done", sluice.OutcomeDone.String())
	require.Equal(t, "done", sluice.StateDone.String())
}
