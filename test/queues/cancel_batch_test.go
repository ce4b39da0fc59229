package queues

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestCancelBatch_IsAsManyCancels: of two equal queues, with tasks in each state, groups and units, one is
// cancelled task by task: the answers are the same, and so is what is left.
func TestCancelBatch_IsAsManyCancels(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		var ids []string
		fill := func(name string) *sluice.Queue {
			q, err := sluice.NewQueue(b.RDB, name, sluice.WithRetention(time.Hour))
			require.NoError(b, err)
			require.NoError(b, q.SetStock(ctx, "phone", 1000))
			at := b.RDB.Time(ctx).Val().Add(-time.Hour)
			ids = nil
			for i := range 40 {
				for kind, task := range []sluice.Task{{}, {Group: fmt.Sprint("g", i%3)}, {Take: sluice.Take{Item: "phone", Units: 2}}, {Delay: time.Hour}} {
					task.ID = fmt.Sprintf("%02d-%d", i, kind)
					if task.Delay == 0 {
						task.At = at.Add(time.Duration(i) * time.Second)
					}
					_, err := q.Enqueue(ctx, task)
					require.NoError(b, err)
					ids = append(ids, task.ID)
				}
			}
			es, err := q.Claim(ctx, 30, time.Hour)
			require.NoError(b, err)
			require.NoError(b, q.Bury(ctx, "why", es[:10]...))
			require.NoError(b, q.Dequeue(ctx, es[10:20]...))
			return q
		}
		one, many := fill(b.Q.Name()+".one"), fill(b.Q.Name()+".many")
		wanted := slices.Concat(ids[:137], []string{"none", ids[0], "none"})
		var want []sluice.State
		for _, id := range wanted {
			state, err := one.Cancel(ctx, id)
			require.NoError(b, err)
			want = append(want, state)
		}
		states, err := many.CancelBatch(ctx, wanted...)
		require.NoError(b, err)
		for i, id := range wanted { // one by one, what waited is put into play before it is cancelled
			if states[i] == sluice.StateWaiting {
				want[i] = sluice.StateWaiting
			}
			require.Equal(b, want[i], states[i], id)
		}
		for _, s := range []sluice.State{sluice.StateDue, sluice.StateScheduled, sluice.StateLeased, sluice.StateDead, sluice.StateDone, sluice.StateWaiting} {
			require.Contains(b, states, s)
		}
		left := func(q *sluice.Queue) (all []string) {
			for state := sluice.StateScheduled; state <= sluice.StateWaiting; state++ {
				for t, err := range q.All(ctx, state) {
					require.NoError(b, err)
					all = append(all, fmt.Sprint(t.ID, t.State, t.Attempt, t.Group, t.Take))
				}
			}
			stock, err := q.Stock(ctx, "phone")
			require.NoError(b, err)
			return append(all, fmt.Sprint(stock))
		}
		require.ElementsMatch(b, left(one), left(many))
		require.NotEmpty(b, left(many))

		_, err = many.CancelBatch(ctx, "a", "")
		require.ErrorIs(b, err, sluice.ErrInvalid)
		states, err = many.CancelBatch(ctx)
		require.NoError(b, err)
		require.Empty(b, states)
	})
}

// TestCancelBatch_CountsALostLeaseOnce, however often its ID comes.
func TestCancelBatch_CountsALostLeaseOnce(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		_, err := b.Q.Enqueue(ctx, sluice.Task{ID: "a"})
		require.NoError(b, err)
		_, err = b.Q.Claim(ctx, 1, time.Second)
		require.NoError(b, err)
		lost := func() int64 {
			stats, err := b.Q.Stats(ctx)
			require.NoError(b, err)
			return stats.Lost
		}
		require.Eventually(b, func() bool { return lost() == 1 }, 20*time.Second, 10*time.Millisecond)

		were, err := b.Q.CancelBatch(ctx, "a", "a", "a")
		require.NoError(b, err)
		require.Equal(b, []sluice.State{sluice.StateDue, sluice.StateAbsent, sluice.StateAbsent}, were)
		require.EqualValues(b, 1, lost())
	})
}

// TestCancelBatch_TellsTheHolders of all that were leased.
func TestCancelBatch_TellsTheHolders(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		var ids []string
		causes, begun := make(chan error, 3), make(chan string, 3)
		w := &sluice.Worker{Queue: b.Q, Concurrency: 3, Lease: 20 * time.Minute, Handler: func(ctx context.Context, e sluice.Entry) error {
			begun <- e.ID
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil
		}}
		for i := range 3 {
			ids = append(ids, fmt.Sprint(i))
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: ids[i]})
		}
		stop := systest.StartWorker(b.T, w)
		for range ids {
			<-begun
		}
		b.Eventually(func() bool { return b.Publish("{"+b.Key+"}:canceled", "another") > 0 }) // the worker has subscribed
		states, err := b.Q.CancelBatch(b.Context(), ids...)
		require.NoError(b, err)
		require.Equal(b, []sluice.State{sluice.StateLeased, sluice.StateLeased, sluice.StateLeased}, states)
		for range ids {
			require.Equal(b, sluice.ErrCanceled, <-causes, "at once: the next extension is minutes away")
		}
		require.NoError(b, stop())
	})
}
