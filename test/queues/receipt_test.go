package queues

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// settlements are the operations that take an entry.
var settlements = map[string]func(ctx context.Context, q *sluice.Queue, e sluice.Entry) error{
	"dequeue": func(ctx context.Context, q *sluice.Queue, e sluice.Entry) error { return q.Dequeue(ctx, e) },
	"retry":   func(ctx context.Context, q *sluice.Queue, e sluice.Entry) error { return q.Retry(ctx, 0, "failed", e) },
	"release": func(ctx context.Context, q *sluice.Queue, e sluice.Entry) error { return q.Release(ctx, e) },
	"bury":    func(ctx context.Context, q *sluice.Queue, e sluice.Entry) error { return q.Bury(ctx, "why", e) },
	"extend":  func(ctx context.Context, q *sluice.Queue, e sluice.Entry) error { return q.Extend(ctx, e, time.Hour) },
	"keep alive": func(ctx context.Context, q *sluice.Queue, e sluice.Entry) error {
		return q.KeepAlive(ctx, e, time.Hour, func(context.Context) error { return errors.New("it was called") })
	},
}

// TestEntry_OfAHandlerHasNoReceipt: what is done with it on the queue is ErrInvalid, so that the
// worker alone settles the task. Nor have those that its hooks are told of.
func TestEntry_OfAHandlerHasNoReceipt(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, stop := context.WithCancel(b.Context())
		defer stop()
		var told []sluice.Entry
		q := b.On(b.RDB, sluice.WithQueueHooks(sluice.QueueHooks{
			TasksClaimed: func(i sluice.TasksClaimed) { told = append(told, i.Entries...) },
			TaskStarted: func(ctx context.Context, i sluice.TaskStarted) context.Context {
				told = append(told, i.Entry)
				return ctx
			},
			TaskFinished: func(_ context.Context, i sluice.TaskFinished) { told = append(told, i.Entry) },
		}))
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("p")})
		errs := map[string]error{}
		w := &sluice.Worker{Queue: q, Handler: func(ctx context.Context, e sluice.Entry) error {
			for what, settle := range settlements {
				errs[what] = settle(ctx, q, e)
			}
			errs["dequeue with others"] = q.Dequeue(ctx, sluice.Entry{ID: "b", Score: 1}, e)
			task, err := q.Get(ctx, "a")
			require.NoError(b, err)
			require.Equal(b, sluice.StateLeased, task.State, "it stays as it is")
			require.Equal(b, 1, task.Attempt)
			stop()
			return nil
		}}
		require.NoError(b, w.Run(ctx))
		for what, err := range errs {
			require.ErrorIs(b, err, sluice.ErrInvalid, what)
			require.ErrorContains(b, err, "no receipt", what)
		}
		require.Len(b, errs, len(settlements)+1)
		require.Len(b, told, 3)
		for _, e := range told {
			require.Equal(b, "a", e.ID)
			require.Zero(b, e.Score)
		}
		b.RequireClean()
	})
}

// TestTaskInfo_OfALeasedTaskHasNoReceipt: to look at it does not take it from its holder. That of a
// task which is not leased is good as long as the task stays as it is.
func TestTaskInfo_OfALeasedTaskHasNoReceipt(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		held := b.ClaimOne(time.Minute)
		listed, err := b.Q.List(b.Context(), sluice.StateLeased, sluice.TaskInfo{}, 1)
		require.NoError(b, err)
		require.Equal(b, []sluice.TaskInfo{b.Get("a")}, listed)
		for what, settle := range settlements {
			require.ErrorIs(b, settle(b.Context(), b.Q, listed[0].Entry), sluice.ErrInvalid, what)
		}
		require.Equal(b, systest.LeasedInfo(held, time.Minute), b.Get("a"))
		b.Bury(held, "why")
		for what, settle := range settlements {
			require.ErrorIs(b, settle(b.Context(), b.Q, b.Get("a").Entry), sluice.ErrStale, what)
		}
		b.Revive(1, "a")
		require.NoError(b, b.Q.Dequeue(b.Context(), b.Get("a").Entry))
		b.RequireClean()
	})
}

// TestEntry_OfATaskThatIsDueAtTimeZeroHasAReceipt: a foreign producer's way to say "at once". Its
// Score is zero too.
func TestEntry_OfATaskThatIsDueAtTimeZeroHasAReceipt(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		for what, settle := range settlements {
			require.NoError(b, b.RDB.Do(b.Context(), "ZADD", b.Key, "0", "a").Err())
			peeked, err := b.Q.Peek(b.Context(), 1)
			require.NoError(b, err)
			require.Len(b, peeked, 1)
			require.Zero(b, peeked[0].Score)
			switch err := settle(b.Context(), b.Q, peeked[0]); what {
			case "extend", "keep alive": // it was not claimed
				require.ErrorIs(b, err, sluice.ErrStale, what)
			default:
				require.NoError(b, err, what)
			}
			require.NoError(b, b.Q.Purge(b.Context()))
		}
	})
}

// TestQueue_AllRangesOverAState, whatever comes and goes meanwhile.
func TestQueue_AllRangesOverAState(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		tasks := tasksNamed("t", b.Sized(1000))
		for i := range tasks {
			tasks[i].At = time.Now().Add(time.Hour + time.Duration(i)*time.Second)
		}
		_, err := b.Q.EnqueueBatch(b.Context(), tasks)
		require.NoError(b, err)
		var seen []sluice.TaskInfo
		for task, err := range b.Q.All(b.Context(), sluice.StateScheduled, sluice.WithoutPayloads()) {
			require.NoError(b, err)
			seen = append(seen, task)
			_, err = b.Q.Cancel(b.Context(), task.ID)
			require.NoError(b, err)
		}
		require.Len(b, seen, len(tasks))
		require.True(b, slices.IsSortedFunc(seen, func(x, y sluice.TaskInfo) int { return x.Due.Compare(y.Due) }))
		for range b.Q.All(b.Context(), sluice.StateScheduled) {
			b.Error("all are gone")
		}
	})
}

// TestQueue_AllEndsWithItsError: the tasks read before come first.
func TestQueue_AllEndsWithItsError(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		_, err := b.Q.EnqueueBatch(b.Context(), tasksNamed("t", 600))
		require.NoError(b, err)
		ctx, end := context.WithCancel(b.Context())
		defer end()
		n, failed := 0, error(nil)
		for task, err := range b.Q.All(ctx, sluice.StateDue) {
			if failed = err; err != nil {
				require.Zero(b, task)
				continue // there is nothing behind it
			}
			if n++; n == 100 {
				end()
			}
		}
		require.ErrorIs(b, failed, context.Canceled)
		require.True(b, strings.HasPrefix(failed.Error(), "sluice: all "), failed)
		require.GreaterOrEqual(b, n, 100)
		require.Less(b, n, 600)
		n = 0
		for range b.Q.All(b.Context(), sluice.StateDue) {
			if n++; n == 3 {
				break
			}
		}
		require.Equal(b, 3, n)
	})
}
