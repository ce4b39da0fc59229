package queues

import (
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/stretchr/testify/require"
)

// TestQueue_NewestFirst lists each state from behind, in pages of each size, also beside what is in
// other states and with equal times: it is the list from the front, reversed.
func TestQueue_NewestFirst(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		q, err := sluice.NewQueue(b.RDB, b.Q.Name(), sluice.WithRetention(time.Hour))
		require.NoError(b, err)
		now := b.RDB.Time(ctx).Val()
		add := func(state string, n int, at func(i int) time.Time) {
			for i := range n {
				b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: fmt.Sprintf("%s-%02d", state, i), At: at(i), Payload: []byte(state)})
			}
		}
		claim := func(n int) []sluice.Entry {
			es, err := q.Claim(ctx, n, time.Hour)
			require.NoError(b, err)
			require.Len(b, es, n)
			return es
		}
		past := func(i int) time.Time { return now.Add(-time.Hour + time.Duration(i/4)*time.Second) }
		add("dead", 11, past)
		require.NoError(b, q.Bury(ctx, "why", claim(6)...)) // each call at one time
		require.NoError(b, q.Bury(ctx, "why", claim(5)...))
		add("done", 9, past)
		require.NoError(b, q.Dequeue(ctx, claim(4)...))
		require.NoError(b, q.Dequeue(ctx, claim(5)...))
		add("leased", 10, past)
		claim(10)
		add("scheduled", 12, func(i int) time.Time { return now.Add(30*time.Minute + time.Duration(i/3)*20*time.Minute) }) // before and behind what is leased
		add("due", 13, past)
		for state := sluice.StateScheduled; state <= sluice.StateDone; state++ {
			want := ids(b, q.All(ctx, state))
			slices.Reverse(want)
			require.Contains(b, []int{9, 10, 11, 12, 13}, len(want), state)
			require.Equal(b, want, ids(b, q.All(ctx, state, sluice.NewestFirst())), state)
			for n := 1; n <= len(want)+1; n++ {
				var listed []string
				for after := (sluice.TaskInfo{}); ; {
					page, err := q.List(ctx, state, after, n, sluice.NewestFirst(), sluice.WithoutPayloads())
					require.NoError(b, err)
					for _, t := range page {
						after, listed = t, append(listed, t.ID)
					}
					if len(page) < n {
						break
					}
				}
				require.Equal(b, want, listed, "%v by %d", state, n)
			}
		}
		_, err = q.List(ctx, sluice.StateWaiting, sluice.TaskInfo{}, 1, sluice.NewestFirst())
		require.ErrorIs(b, err, sluice.ErrInvalid)
		// What comes while pages are read does not shift them, and a place that is gone is one.
		page, err := q.List(ctx, sluice.StateDead, sluice.TaskInfo{}, 3, sluice.NewestFirst())
		require.NoError(b, err)
		want := ids(b, q.All(ctx, sluice.StateDead, sluice.NewestFirst()))
		require.NoError(b, q.Bury(ctx, "later", claim(2)...))
		_, err = q.Drop(ctx, page[2].ID)
		require.NoError(b, err)
		next, err := q.List(ctx, sluice.StateDead, page[2], 3, sluice.NewestFirst())
		require.NoError(b, err)
		require.Equal(b, want[3:6], []string{next[0].ID, next[1].ID, next[2].ID})
	})
}

// ids returns the IDs of what is listed.
func ids(b systest.QueueTest, all iter.Seq2[sluice.TaskInfo, error]) (ids []string) {
	b.Helper()
	for t, err := range all {
		require.NoError(b, err)
		ids = append(ids, t.ID)
	}
	return ids
}
